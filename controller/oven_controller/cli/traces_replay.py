"""`traces replay` and `traces cost`: teachers asked at an agent's own states, and what that will cost."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from oven_controller.cli.options import Json
from oven_controller.cli.traces_source import From, Source
from oven_core.cancellation import call_at_end
from oven_core.errors import ConfigError
from oven_core.terminal_text import say
from oven_llm import providers
from oven_llm.providers.budget import Budget
from oven_llm.providers.usage import is_priced
from oven_llm.trace_replay import cost_forecast, replay_report
from oven_llm.trace_replay.cost_forecast import Forecast, StateSize, state_sizes
from oven_llm.trace_replay.replay import Outcome, Replay, Teacher
from oven_llm.trace_replay.replies_file import RepliesFile, Settled
from oven_llm.trace_replay.teachers_file import TeachersFile, read_teachers
from oven_runs.home.model_spend import Cap
from oven_runs.settings.judge_providers import ModelEndpoint, key_of
from oven_runs.traces import jsonl
from oven_runs.traces.formats.table import read_traces
from oven_runs.traces.records import Reply, Trace

PROGRESS_S: Final = 5.0
"""Seconds between two lines that say how far a replay is."""

TeachersOption = Annotated[
    Path, Option("--teachers", metavar="FILE", help="The teachers: models, families, samples, budget (YAML).")
]
Out = Annotated[Path, Option("--out", metavar="FILE", help="The file of replies; one that is there is continued.")]
SkipBad = Annotated[bool, Option("--skip-bad", help="Leave out lines that hold no trace.")]
First = Annotated[
    int | None, Option("--first", metavar="N", min=1, help="Only so many traces, spread evenly over the file.")
]


def replay(
    traces: Source,
    teachers: TeachersOption,
    out: Out = Path("replies.jsonl"),
    first: First = None,
    again: Annotated[
        bool,
        Option("--again", help="Ask again, and pay again, where a teacher refused or an earlier call was cut off."),
    ] = False,
    format_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Ask teachers for their action at each state of an agent's traces. A replay stops at its budget, and the same
    command continues it.

    Exit code 1 if some states have no reply.

    Example: oven-controller traces replay traces.jsonl --teachers teachers.yaml --out replies.jsonl
    """
    found, file = spread_traces(traces, format_, first, skip_bad=skip_bad), read_teachers(teachers)
    endpoints = file.endpoints()
    _check_prices(file, endpoints)
    keys = {name: key_of(name, asked, setting=f"teachers.{name}") for name, asked in endpoints.items()}
    described = {name: teacher.described() for name, teacher in file.teachers.items()}
    families = {name: teacher.family for name, teacher in file.teachers.items()}
    with ExitStack() as opened:
        providers_log = logging.getLogger("oven.member")
        opened.callback(providers_log.setLevel, providers_log.level)
        providers_log.setLevel(logging.ERROR)  # single calls that failed are counted in the report
        replies = RepliesFile(out, found, described, families, again=again)
        opened.callback(replies.close)
        if not as_json:
            _announce(file, replies, found)
            if _left(file, replies, found):
                say(*cost_forecast.lines(forecast_all(file, endpoints, found, out, again=again)), flush=True)
        outcome = asyncio.run(_replayed(found, file, endpoints, keys, replies, opened, quiet=as_json))
    said = replay_report.report(found, jsonl.read(out, Reply) if out.exists() and out.stat().st_size else ())
    left = _left(file, replies, found)
    if as_json:
        print(json.dumps(replay_report.as_json(said) | {"this_call": _outcome_json(outcome, replies), "left": left}))
    else:
        say(*replay_report.lines(said), *_outcome_lines(outcome, replies, left))
    unanswered = sum(teacher.states - teacher.answered for teacher in said.teachers.values())
    return 1 if left or unanswered or outcome.given_up else 0


def cost(
    traces: Source,
    teachers: TeachersOption,
    out: Annotated[
        Path, Option("--replies", metavar="FILE", help="Replies to fit the forecast to, and not to pay for again.")
    ] = Path("replies.jsonl"),
    first: First = None,
    format_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Forecast the cost of a replay. Exit code 1 if the price of a teacher is unknown.

    Example: oven-controller traces cost traces.jsonl --teachers teachers.yaml --replies replies.jsonl
    """
    found, file = spread_traces(traces, format_, first, skip_bad=skip_bad), read_teachers(teachers)
    forecasts = forecast_all(file, file.endpoints(), found, out)
    if as_json:
        print(json.dumps(cost_forecast.as_json(forecasts)))
    else:
        say(*cost_forecast.lines(forecasts))
    return 1 if any(one.usd is None for one in forecasts) else 0


def spread_traces(
    path: Path, name: str | None = None, first: int | None = None, *, skip_bad: bool = False
) -> list[Trace]:
    """Return the traces of a file, or `first` of them, spread evenly. `name` and `skip_bad` are as in `read_traces`.
    Raises ConfigError as `read_traces`, and if no trace has a step."""
    traces = list(read_traces(path, name, skip_bad=skip_bad))
    if first is not None and first < len(traces):
        traces = [traces[(2 * number + 1) * len(traces) // (2 * first)] for number in range(first)]
    if not any(trace.steps for trace in traces):
        raise ConfigError(f"{path} has {len(traces)} traces and no step that a teacher could be asked about")
    return traces


def forecast_all(
    file: TeachersFile,
    endpoints: Mapping[str, ModelEndpoint],
    traces: Sequence[Trace],
    replies: Path,
    *,
    again: bool = False,
) -> list[Forecast]:
    """One of each teacher, for the states that it has still to be asked about. `again`: as in `traces replay`. Raises
    ConfigError."""
    sizes: dict[tuple[str, int], StateSize] = {}
    digests: dict[tuple[str, int], str] = {}
    for trace in traces:
        for size, digest in zip(state_sizes(trace), trace.digests(), strict=True):
            sizes[(trace.id, size.step)] = size
            digests[(trace.id, size.step)] = digest
    there = [
        reply
        for reply in (jsonl.read(replies, Reply, cut=True) if replies.exists() and replies.stat().st_size else ())
        if digests.get((reply.trace, reply.step)) == reply.state
    ]
    settled, found = Settled(there), []
    for name, teacher in file.teachers.items():
        left = [
            size
            for key, size in sizes.items()
            if not settled.answered((name, *key)) and (again or not settled.failed((name, *key)))
        ]
        found.append(cost_forecast.forecast(name, teacher.samples, teacher.lanes, endpoints[name], left, there, sizes))
    return found


async def _replayed(
    traces: Sequence[Trace],
    file: TeachersFile,
    endpoints: Mapping[str, ModelEndpoint],
    keys: Mapping[str, str],
    replies: RepliesFile,
    opened: ExitStack,
    *,
    quiet: bool,
) -> Outcome:
    spent = replies.path.with_name(replies.path.name + ".spend.sqlite")
    budget = opened.enter_context(Budget([Cap(file.budget, "budget")], spent))
    teachers: list[Teacher] = []
    try:
        for name, asked in endpoints.items():
            model = providers.connect(name, asked, keys[name], budget=budget, account=name)
            teachers.append(Teacher(name, file.teachers[name], model))
        whole = sum(len(trace.steps) for trace in traces) * len(teachers)
        running = Replay(traces, teachers, replies, (lambda _: None) if quiet else _Progress(whole).told)
        call_at_end(partial(running.stop, "it was told to end"))
        outcome = await running.run()
        outcome.booked_usd = budget.cost_usd
        return outcome
    finally:
        for teacher in teachers:
            await teacher.model.close()


class _Progress:
    """A line on standard error now and then."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._next = time.monotonic() + PROGRESS_S

    def told(self, outcome: Outcome) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            failed = sum(outcome.failed.values())
            print(f"{outcome.asked} of {self._whole} states, {failed} without an answer", file=sys.stderr, flush=True)


def _announce(file: TeachersFile, replies: RepliesFile, traces: Sequence[Trace]) -> None:
    if replies.interrupted:
        say(
            f"{replies.interrupted} states were with a teacher when an earlier call was cut off, and may be paid for: "
            "they are not asked again (--again asks)"
        )
    if len(file.families) < 2:
        say(f"all teachers are of the family {file.families[0]!r}: no pair can come of it, for two families must agree")
    say(f"{_left(file, replies, traces)} states are left to ask about", flush=True)


def _left(file: TeachersFile, replies: RepliesFile, traces: Sequence[Trace]) -> int:
    return sum(
        replies.wants((teacher, trace.id, step))
        for teacher in file.teachers
        for trace in traces
        for step in range(len(trace.steps))
    )


def _check_prices(file: TeachersFile, endpoints: Mapping[str, ModelEndpoint]) -> None:
    if file.budget.usd is None:
        return
    for name, asked in endpoints.items():
        if not is_priced(asked):
            raise ConfigError(
                f"the price of {asked.model!r}, the model of the teacher {name!r}, is not known, so a cap in US "
                f"dollars cannot be kept; write teachers.{name}.price (US dollars per million tokens), or cap "
                "budget.tokens"
            )


def _outcome_json(outcome: Outcome, replies: RepliesFile) -> dict[str, object]:
    return {
        "asked": outcome.asked,
        "answered": outcome.answered,
        "failed": dict(outcome.failed),
        "faults_on_the_way": dict(outcome.faults),
        "interrupted_before": replies.interrupted,
        "stopped": outcome.stopped,
        "given_up": outcome.given_up,
        "seconds": round(outcome.seconds, 2),
        "booked_usd": outcome.booked_usd,
    }


def _outcome_lines(outcome: Outcome, replies: RepliesFile, left: int) -> Iterator[str]:
    faults = ", ".join(f"{kind} {count}" for kind, count in outcome.faults.most_common())
    yield f"this call: {outcome.asked} states in {outcome.seconds:.1f} s; faults on the way: {faults or 'none'}"
    if outcome.booked_usd is not None:
        yield f"booked: ${outcome.booked_usd:.4f} for all calls so far, what got lost at its greatest cost"
    for teacher, why in outcome.given_up.items():
        yield f"{teacher} was given up: {why}"
    if outcome.stopped:
        yield f"it stopped early: {outcome.stopped}"
    if left:
        yield f"{left} states are left; the same command continues"

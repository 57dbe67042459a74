"""`traces replay` and `traces cost`: ask teachers at an agent's own states, and forecast the cost."""

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
from oven_controller.cli.traces_options import From, SkipBad, Source
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
"""Seconds between two progress lines."""

TeachersOption = Annotated[
    Path, Option("--teachers", metavar="FILE", help="YAML file of teachers: models, families, samples, budget.")
]
Out = Annotated[Path, Option("--out", metavar="FILE", help="File of replies. An existing one is continued.")]
First = Annotated[
    int | None, Option("--first", metavar="N", min=1, help="Use only this many traces, spread evenly over the file.")
]


def replay(
    traces: Source,
    teachers: TeachersOption,
    out: Out = Path("replies.jsonl"),
    first: First = None,
    again: Annotated[
        bool,
        Option("--again", help="Ask again, and pay again, if a teacher refused or an earlier call was interrupted."),
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
    selected, file = spread_traces(traces, format_, first, skip_bad=skip_bad), read_teachers(teachers)
    endpoints = file.endpoints()
    _check_prices(file, endpoints)
    keys = {name: key_of(name, endpoint, setting=f"teachers.{name}") for name, endpoint in endpoints.items()}
    described = {name: teacher.described() for name, teacher in file.teachers.items()}
    families = {name: teacher.family for name, teacher in file.teachers.items()}
    with ExitStack() as opened:
        providers_log = logging.getLogger("oven.member")
        opened.callback(providers_log.setLevel, providers_log.level)
        providers_log.setLevel(logging.ERROR)  # the report counts failed calls
        replies = RepliesFile(out, selected, described, families, again=again)
        opened.callback(replies.close)
        if not as_json:
            _announce(file, replies, selected)
            if _remaining(file, replies, selected):
                say(*cost_forecast.lines(forecast_all(file, endpoints, selected, out, again=again)), flush=True)
        outcome = asyncio.run(_replay(selected, file, endpoints, keys, replies, opened, quiet=as_json))
    result = replay_report.report(selected, jsonl.read(out, Reply) if out.exists() and out.stat().st_size else ())
    remaining = _remaining(file, replies, selected)
    if as_json:
        this_call = _outcome_json(outcome, replies)
        print(json.dumps(replay_report.as_json(result) | {"this_call": this_call, "left": remaining}))
    else:
        say(*replay_report.lines(result), *_outcome_lines(outcome, remaining))
    unanswered = sum(teacher.states - teacher.answered for teacher in result.teachers.values())
    return 1 if remaining or unanswered or outcome.given_up else 0


def cost(
    traces: Source,
    teachers: TeachersOption,
    out: Annotated[
        Path,
        Option("--replies", metavar="FILE", help="Replies that the forecast is fitted to."),
    ] = Path("replies.jsonl"),
    first: First = None,
    format_: From = None,
    skip_bad: SkipBad = False,
    as_json: Json = False,
) -> int:
    """Forecast the cost of a replay. Exit code 1 if the price of a teacher is unknown.

    Example: oven-controller traces cost traces.jsonl --teachers teachers.yaml --replies replies.jsonl
    """
    selected, file = spread_traces(traces, format_, first, skip_bad=skip_bad), read_teachers(teachers)
    forecasts = forecast_all(file, file.endpoints(), selected, out)
    if as_json:
        print(json.dumps(cost_forecast.as_json(forecasts)))
    else:
        say(*cost_forecast.lines(forecasts))
    return 1 if any(forecast.usd is None for forecast in forecasts) else 0


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
    """Return a forecast per teacher for the states that it must still be asked about. `again`: as in `traces replay`.
    Raises ConfigError."""
    sizes: dict[tuple[str, int], StateSize] = {}
    digests: dict[tuple[str, int], str] = {}
    for trace in traces:
        for size, digest in zip(state_sizes(trace), trace.digests(), strict=True):
            sizes[(trace.id, size.step)] = size
            digests[(trace.id, size.step)] = digest
    matching = [
        reply
        for reply in (jsonl.read(replies, Reply, cut=True) if replies.exists() and replies.stat().st_size else ())
        if digests.get((reply.trace, reply.step)) == reply.state
    ]
    settled, forecasts = Settled(matching), []
    for name, teacher in file.teachers.items():
        remaining = [
            size
            for key, size in sizes.items()
            if not settled.answered((name, *key)) and (again or not settled.failed((name, *key)))
        ]
        forecasts.append(
            cost_forecast.forecast(name, teacher.samples, teacher.lanes, endpoints[name], remaining, matching, sizes)
        )
    return forecasts


async def _replay(
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
        for name, endpoint in endpoints.items():
            model = providers.connect(name, endpoint, keys[name], budget=budget, account=name)
            teachers.append(Teacher(name, file.teachers[name], model))
        total = sum(len(trace.steps) for trace in traces) * len(teachers)
        running = Replay(traces, teachers, replies, (lambda _: None) if quiet else _Progress(total).show)
        call_at_end(partial(running.stop, "it was interrupted"))
        outcome = await running.run()
        outcome.booked_usd = budget.cost_usd
        return outcome
    finally:
        for teacher in teachers:
            await teacher.model.close()


class _Progress:
    """Prints a line on standard error now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next = time.monotonic() + PROGRESS_S

    def show(self, outcome: Outcome) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            failed = sum(outcome.failed.values())
            print(f"{outcome.states} of {self._total} states, {failed} without an answer", file=sys.stderr, flush=True)


def _announce(file: TeachersFile, replies: RepliesFile, traces: Sequence[Trace]) -> None:
    if replies.interrupted:
        say(
            f"{replies.interrupted} states were in flight when an earlier run was interrupted, and may have been "
            "billed: they are not asked again without --again"
        )
    if len(file.families) < 2:
        say(f"all teachers are of the family {file.families[0]!r}, and two families must agree for a pair")
    say(f"{_remaining(file, replies, traces)} states remain", flush=True)


def _remaining(file: TeachersFile, replies: RepliesFile, traces: Sequence[Trace]) -> int:
    return sum(
        replies.wants((teacher, trace.id, step))
        for teacher in file.teachers
        for trace in traces
        for step in range(len(trace.steps))
    )


def _check_prices(file: TeachersFile, endpoints: Mapping[str, ModelEndpoint]) -> None:
    if file.budget.usd is None:
        return
    for name, endpoint in endpoints.items():
        if not is_priced(endpoint):
            raise ConfigError(
                f"the price of {endpoint.model!r}, the model of the teacher {name!r}, is unknown, so a cap in US "
                f"dollars cannot be kept; set teachers.{name}.price (US dollars per million tokens), or cap "
                "budget.tokens"
            )


def _outcome_json(outcome: Outcome, replies: RepliesFile) -> dict[str, object]:
    return {
        "asked": outcome.states,
        "answered": outcome.answered,
        "failed": dict(outcome.failed),
        "faults_on_the_way": dict(outcome.faults),
        "interrupted_before": replies.interrupted,
        "stopped": outcome.stopped,
        "given_up": outcome.given_up,
        "seconds": round(outcome.seconds, 2),
        "booked_usd": outcome.booked_usd,
    }


def _outcome_lines(outcome: Outcome, remaining: int) -> Iterator[str]:
    faults = ", ".join(f"{kind} {count}" for kind, count in outcome.faults.most_common())
    yield f"this run: {outcome.states} states in {outcome.seconds:.1f} s; failed attempts: {faults or 'none'}"
    if outcome.booked_usd is not None:
        yield f"booked: ${outcome.booked_usd:.4f} for all calls so far, lost calls at their maximum cost"
    for teacher, reason in outcome.given_up.items():
        yield f"{teacher} was given up: {reason}"
    if outcome.stopped:
        yield f"it stopped early: {outcome.stopped}"
    if remaining:
        yield f"{remaining} states remain; the same command continues"

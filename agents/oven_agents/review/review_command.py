"""`oven-controller review PATH`: all agents over one finished run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from oven_agents.review import html_page, text_report
from oven_agents.review.flagged_proposals import Series, flags, judge
from oven_agents.review.observation_file import BLOCK, Index, ObservationFile
from oven_agents.review.open_loop_replay import OpenLoopReplay
from oven_agents.review.report import Report
from oven_agents.review.votes_by_tick import BLOCKS, Answered, Answers, Asking, reviews
from oven_agents.runtime.loader import load_repeatable, repeatable_agents
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.session import PATIENCE
from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_core.mesh.outputs import OUTPUTS
from oven_core.protocol import names
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected, with_announced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import LogMessage, Observation, RunEnded, RunStarted
from oven_core.terminal_text import say
from oven_runs.log.replay import refuse_another_version

PROCESSES = 2
"""As many as ask agents at a time, where there are as many cores."""
Change = Callable[[RunStarted], RunStarted]


def main(
    run: str,
    events: Callable[[], Iterable[Event]],
    *,
    agents: Sequence[str],
    change: Change,
    notes: Callable[[RunStarted], Sequence[str]] = lambda _: (),
    as_json: bool = False,
    html: Path | None = None,
    jobs: int | None = None,
) -> int:
    """`agents`: those to ask; none: all installed whose votes follow from a log. `events`
    gives the run's log, judged, as often as it is called; `change` what a start is to be replaced by, with the knobs
    that it may add; `notes` what is to be said of the source.

    Raises ConfigError, UnknownNameError and what else reading a log raises.
    """
    targets: dict[str, str] = {}
    loaded: dict[str, Agent] = {}
    for one in agents or repeatable_agents():
        name, agent = load_repeatable(one)
        targets[names.checked("agent", name)], loaded[name] = one, agent
    with tempfile.TemporaryDirectory(prefix="oven-review-") as folder, _Progress() as progress:
        report = look(run, events, loaded, targets, Path(folder) / "ticks", change, jobs or _cores(), progress.tell)
    report.lines = notes(report.start)
    if html is not None:
        try:
            write_atomic(html, html_page.page(report))
        except OSError as error:
            raise ConfigError(f"--html {html} cannot be written: {error.strerror or error}") from error
    if as_json:
        print(json.dumps(report.plain()))
    else:
        say(*text_report.lines(report))
        if html is not None:
            print(f"\n{html} has the same with charts")
    return 0


@dataclass
class _Copied:
    """What the first pass over a log found."""

    index: Index
    steps: tuple[int, int] = (0, 0)
    span: tuple[int, int] = (0, 0)
    start: RunStarted | None = None
    others: bool = False
    """Somebody but the learner and the agents that are asked has a say in it."""
    ended: RunEnded | None = None
    assumed: list[str] = field(default_factory=list)
    """Knobs that the log does not announce."""


def look(
    run: str,
    events: Callable[[], Iterable[Event]],
    loaded: Mapping[str, Agent],
    targets: Mapping[str, str],
    path: Path,
    change: Change,
    processes: int,
    tell: Callable[[float], None],
) -> Report:
    """The whole review. `loaded` are the agents by name, `targets` what other processes load them by. `path`: a file to
    work with."""
    file = ObservationFile(path)
    with Asking(targets, file.index, processes) as asking:
        copied = _copy(run, events(), set(targets), file, change, asking)
        if copied.start is None or not file.ticks:
            raise ConfigError(f"run {run!r} has nothing to review: its log holds no observation of a run that started")
        panel, answers = OpenLoopReplay(run, loaded), None
        if not copied.others and not any(map(reviews, loaded.values())):
            answers = Answers()
            panel = _answered(run, loaded, answers, copied, asking, tell)
    if answers is None or answers.ballots:
        panel, answers = OpenLoopReplay(run, loaded), None
        for event in _changed(events(), change):
            panel.take(event)
            tell(panel.tick / max(1, copied.span[1]))
    report = Report(
        run=run,
        start=copied.start,
        ticks=file.ticks,
        steps=copied.steps,
        span=copied.span,
        agents=sorted(targets),
        flags=flags(panel.said, copied.start.rules),
        cannot_fire=panel.cannot_fire | (_gave_up(answers) if answers else {}),
        raised=_raised(answers) if answers else panel.problems,
        notices=panel.notices,
        assumed=copied.assumed,
    )
    _judge(report, copied, panel)
    return report


def _copy(
    run: str, events: Iterable[Event], own: set[str], file: ObservationFile, change: Change, asking: Asking
) -> _Copied:
    """The learner's starts and observations into the file, each once, and whole parts of it to those who ask."""
    on, newest = names.Subjects(run), (0, -1)
    found = _Copied(file.index)
    mine = {subject(name) for name in own for subject in (on.vote, on.agent, on.alert)}
    for event in events:
        refuse_another_version(event)
        body = event.body
        if isinstance(body, Malformed) or event.subject in mine or names.kind(event.subject) in OUTPUTS:
            continue
        if isinstance(body, PromptsInjected):
            continue  # no agent hears of it
        if isinstance(body, ActuatorAnnounced) and found.start is not None:
            found.start = with_announced(found.start, body)
        if not isinstance(body, RunStarted | RunEnded | Observation):
            found.others = True
            continue
        if (body.incarnation, body.n) <= newest:
            continue
        newest = body.incarnation, body.n
        if isinstance(body, RunStarted):
            known = {spec.name for spec in body.actuators}
            found.start = body = change(body)
            found.assumed = [spec.name for spec in body.actuators if spec.name not in known]
            file.add(body)
        elif isinstance(body, RunEnded):
            found.ended = body
        else:
            file.add(body)
            if file.ticks == 1:
                found.steps, found.span = (body.step, body.step), (body.tick, body.tick)
            elif file.ticks % (BLOCKS * BLOCK) == 1 and not found.others:
                file.flush()
                asking.written(len(file.index.places) - 1)
            found.steps = min(found.steps[0], body.step), max(found.steps[1], body.step)
            found.span = found.span[0], body.tick
    file.close()
    if not found.others:
        asking.written(len(file.index.places))
    return found


def _answered(
    run: str,
    loaded: Mapping[str, Agent],
    answers: Answers,
    copied: _Copied,
    asking: Asking,
    tell: Callable[[float], None],
) -> OpenLoopReplay:
    """Fills `answers` and has the mesh hear them, part by part."""
    speaking: set[int] = set()
    panel = OpenLoopReplay(run, {name: Answered(agent, name, answers) for name, agent in loaded.items()}, speaking)
    log, heard = _log(run, copied), 0
    for blocks, part in asking.answers(loaded):
        answers.merge(part)
        speaking.update(tick for found in part.said.values() for tick in found)
        while heard < blocks * BLOCK and (event := next(log, None)) is not None:
            panel.take(event)
            heard += isinstance(event.body, Observation)
        tell(blocks / len(copied.index.places))
    return panel


def _raised(answers: Answers) -> dict[str, list[str]]:
    return {name: [found[tick] for tick in sorted(found)] for name, found in answers.raised.items()}


def _gave_up(answers: Answers) -> dict[str, str]:
    found = {}
    for name, raised in answers.raised.items():
        last = answers.patience(name)
        if last is not None:
            why = raised[last].strip().splitlines()[-1]
            found[name] = f"its code raised at {PATIENCE} ticks in a row, last {why}"
    return found


def _log(run: str, copied: _Copied) -> Iterator[Event]:
    """The learner's part of the log again, out of the file; nothing reads its bytes."""
    on = names.Subjects(run)
    messages: list[LogMessage] = [copied.ended] if copied.ended else []
    for seq, message in enumerate(_chain(copied.index.read(0, len(copied.index.places)), messages), 1):
        subject = on.observation if isinstance(message, Observation) else on.run
        yield Event(seq, subject, b"", UNKNOWN, _patient(message))


def _chain(*parts: Iterable[LogMessage]) -> Iterator[LogMessage]:
    for part in parts:
        yield from part


def _patient(message: LogMessage) -> LogMessage:
    """Agents that were asked before say no sign of life in between, and are not lost for it."""
    if not isinstance(message, RunStarted):
        return message
    rules = message.rules.model_copy(update={"silent_ticks": 2**53})
    return message.model_copy(update={"rules": rules})


def _changed(events: Iterable[Event], change: Change) -> Iterator[Event]:
    for event in events:
        yield replace(event, body=change(event.body)) if isinstance(event.body, RunStarted) else event


def _judge(report: Report, copied: _Copied, panel: OpenLoopReplay) -> None:
    """Flags against what was measured, which is kept for the charts."""
    announced = {spec.name: spec for spec in report.start.metrics}
    wanted = {flag.first.vote.target for flag in report.flags} | {"learning_rate", "grad_norm"}
    wanted |= set(html_page.headline(report))
    measured: dict[str, Series] = {}
    for tick, metrics in copied.index.metrics():
        for name in wanted & metrics.keys():
            measured.setdefault(name, Series()).add(tick, metrics[name])
    for flag in report.flags:
        judge(flag, announced, measured, panel.changes, report.start.rules.outcome_samples)
    report.measured = measured


def _cores() -> int:
    return min(PROCESSES, len(os.sched_getaffinity(0)))


class _Progress:
    """How far it is, on a terminal; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = -1
        self._terminal = sys.stderr.isatty()

    def tell(self, done: float) -> None:
        percent = int(100 * done)
        if self._terminal and percent != self._shown:
            self._shown = percent
            print(f"\rasking agents: {percent} %", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown >= 0:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

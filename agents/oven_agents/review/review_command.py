"""Implements `oven-controller review PATH`, which replays a finished run to all agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oven_agents.review import html_page
from oven_agents.review.flagged_proposals import Series, group_into_flags, judge
from oven_agents.review.open_loop_replay import OpenLoopReplay
from oven_agents.review.page import write_page
from oven_agents.review.report import Report, text_lines
from oven_agents.runtime.agent_loader import load_repeatable, repeatable_agents
from oven_agents.sdk.agent import Agent
from oven_core.errors import ConfigError
from oven_core.protocol import names
from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.terminal_text import say

ChangeStart = Callable[[RunStarted], RunStarted]
"""A function from the recorded start of a run to its start for the replay."""


def main(
    run: str,
    events: Callable[[], Iterable[Event]],
    *,
    agents: Sequence[str],
    change: ChangeStart,
    notes: Callable[[RunStarted], Sequence[str]] = lambda _: (),
    as_json: bool = False,
    html: Path | None = None,
) -> int:
    """Print a review and return the exit code. `agents` are names or files. Without any, the review uses all installed
    agents whose votes can be recomputed from a log. `events` returns the run's verified log each time it is called.
    `change` maps the recorded start to the start for the replay and may add knobs. `notes` returns remarks about the
    source. Raises ConfigError, UnknownNameError, and the errors of reading a log."""
    loaded = dict(load_repeatable(agent) for agent in agents or repeatable_agents())
    for name in loaded:
        names.validate("agent", name)
    with _Progress() as progress:
        report = review(run, events, loaded, change, progress.show)
    report.source_notes = notes(report.start)
    if html is not None:
        write_page(html, html_page.render(report))
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        say(*text_lines(report))
        if html is not None:
            print(f"\n{html} has the same report with charts")
    return 0


@dataclass
class _Extent:
    """The start of the recorded run, and the steps and ticks that it covers, collected during the replay."""

    start: RunStarted | None = None
    assumed_knobs: Sequence[str] = ()
    """Knobs that were added to the newest start and are not in the log."""
    tick_count: int = 0
    step_range: tuple[int, int] = (0, 0)
    tick_range: tuple[int, int] = (0, 0)

    def add(self, observation: Observation) -> None:
        first_tick = self.tick_range[0] if self.tick_count else observation.tick
        lowest_step = self.step_range[0] if self.tick_count else observation.step
        self.step_range = min(lowest_step, observation.step), max(self.step_range[1], observation.step)
        self.tick_range = first_tick, observation.tick
        self.tick_count += 1


def review(
    run: str,
    events: Callable[[], Iterable[Event]],
    agents: Mapping[str, Agent],
    change: ChangeStart = lambda start: start,
    progress: Callable[[int], object] = lambda _tick: None,
) -> Report:
    """Replay the run to all `agents` together and judge their flags. `progress` is called with each event's tick."""
    replay, extent = OpenLoopReplay(run, agents), _Extent()
    for event in events():
        if isinstance(event.body, RunStarted):
            start = change(event.body)
            logged = {spec.name for spec in event.body.actuators}
            extent.assumed_knobs = [spec.name for spec in start.actuators if spec.name not in logged]
            event = replace(event, body=start)
        message = replay.add(event)
        if isinstance(message, RunStarted):
            extent.start = message
        elif isinstance(message, ActuatorAnnounced) and extent.start is not None:
            extent.start = with_announced(extent.start, message)
        elif isinstance(message, Observation):
            extent.add(message)
        progress(replay.tick)
    if extent.start is None or not extent.tick_count:
        raise ConfigError(f"run {run!r} has nothing to review: its log contains no observations of a started run")
    report = Report(
        run=run, start=extent.start, tick_count=extent.tick_count, step_range=extent.step_range,
        tick_range=extent.tick_range, agents=sorted(agents),
        flags=group_into_flags(replay.proposals, extent.start.rules),
        cannot_fire=replay.cannot_fire, tracebacks=replay.problems,
        notices=[(notice.step, notice.agent, notice.text) for notice in replay.notices],
        assumed_knobs=extent.assumed_knobs,
    )  # fmt: skip
    _judge(report, events(), replay)
    return report


def _judge(report: Report, events: Iterable[Event], replay: OpenLoopReplay) -> None:
    """Judge the flags by the measurements of their targets. This second pass over the log stores only a few metrics."""
    charted = {flag.first.vote.target for flag in report.flags} | {"learning_rate", "grad_norm"}
    charted |= set(html_page.headline_metrics(report))
    series_by_metric: dict[str, Series] = {}
    latest = (0, -1)
    for event in events:
        observation = event.body
        if not isinstance(observation, Observation) or (observation.incarnation, observation.n) <= latest:
            continue
        latest = observation.incarnation, observation.n
        for name in charted & observation.metrics.keys():
            series_by_metric.setdefault(name, Series()).add(observation.tick, observation.metrics[name])
    announced = {spec.name: spec for spec in report.start.metrics}
    for flag in report.flags:
        min_samples = report.start.rules.outcome_samples
        flag.likely_kind, flag.afterwards = judge(flag, announced, series_by_metric, replay.changes, min_samples)
    report.series = series_by_metric


class _Progress:
    """A progress line on a terminal with the current tick of the replay."""

    def __init__(self) -> None:
        self._shown = False
        self._terminal = sys.stderr.isatty()

    def show(self, tick: int) -> None:
        if self._terminal and tick % 200 == 0:
            self._shown = True
            print(f"\rreplaying the run to the agents: tick {tick:,}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

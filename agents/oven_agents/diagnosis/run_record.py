"""Collects from a log what a diagnosis needs: the metrics, and the changes that agents proposed with their results."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from oven_agents.diagnosis.detectors import Alarm, find_alarms
from oven_core.errors import ConfigError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.events import Event
from oven_core.protocol.evidence import read_symptoms
from oven_core.protocol.messages import (
    Decision,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
    Vote,
)
from oven_runs.log.run_summary import OBSERVE_MARKER

MAX_READINGS: Final = 1 << 16
"""Maximum number of readings per metric. Of longer series, every second, fourth, or eighth reading remains, so that a
log of any length fits into memory."""


@dataclass
class Intervention:
    """A decision on the proposal of agents, with the symptoms that they named and its result."""

    decision: Decision
    agents: tuple[str, ...]
    """Agents that proposed the change."""
    symptoms: tuple[str, ...]
    """Symptoms in the evidence of their votes, as nodes of the knowledge graph."""
    receipt: Receipt | None = None
    outcome: Outcome | None = None

    @property
    def is_applied(self) -> bool:
        """Whether the learner made the change."""
        return self.receipt is not None and self.receipt.status == "applied"

    @property
    def is_withheld(self) -> bool:
        """Whether only the autonomy level prevented the change."""
        return self.decision.verdict == "advised" or OBSERVE_MARKER in self.decision.reason

    @property
    def beat(self) -> float | None:
        """The probability that the change beat doing nothing, or None if its outcome was not scored."""
        return self.outcome.beat if self.outcome is not None and self.outcome.scored else None

    @property
    def rationale(self) -> str:
        """The reason of the first proposal."""
        return next((line.rationale for line in self.decision.tally if line.stance == "propose"), "")


@dataclass
class RunRecord:
    """The metrics and interventions of a run. Call `add` for each event of its log."""

    run: RunStarted | None = None
    """The latest announcement of the run."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Metric → the column of another program's log from which it comes. Messages name the column."""
    run_end: RunEnded | None = None
    ticks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Optimizer step at each tick of `ticks`."""
    series: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    """Ticks and readings of each metric."""
    first_values: dict[str, Value] = field(default_factory=dict)
    """Value of each knob when it was first announced."""
    values_now: dict[str, Value] = field(default_factory=dict)
    """Value of each knob after its last change."""
    interventions: dict[str, Intervention] = field(default_factory=dict)
    """Interventions by the decision's id, oldest first. One that an operator approved also has the approval's id."""
    changes: list[tuple[int, str]] = field(default_factory=list)
    """Tick and knob of each applied change that affects the training at once, including those by people, oldest
    first."""
    alerts: list[Alert] = field(default_factory=list)
    """Alerts by which agents reported the beginning of a symptom."""
    start_count: int = 0
    step_range: tuple[int, int] = (0, 0)
    """Lowest and highest step."""
    observation_count: int = 0
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)  # latest (incarnation, n) by message kind
    _counts: Counter[str] = field(default_factory=Counter)  # readings by metric, including those that were dropped
    _votes: dict[tuple[str, str], Vote] = field(default_factory=dict)  # latest vote by actuator and agent

    def add(self, event: Event) -> None:
        """Add the next verified event. Malformed and repeated events are ignored."""
        match event.body:
            case Observation() as body if self._is_new("observation", body.incarnation, body.n):
                self.add_readings(body.tick, body.step, body.metrics)
            case RunStarted() as body if self._is_new("run", body.incarnation, body.n):
                self.start_count += self.run is None or body.incarnation > self.run.incarnation
                self.run, self.run_end = body, None
                self.first_values = {spec.name: spec.value for spec in body.actuators} | self.first_values
            case ActuatorAnnounced() as body if self.run is not None:
                self.run = with_announced(self.run, body)
                self.first_values = {spec.name: spec.value for spec in self.run.actuators} | self.first_values
            case RunEnded() as body:
                self.run_end = body
            case Vote() as body:
                self._votes[body.actuator, event.author] = body
            case Decision() as body:
                self._add_decision(body)
            case Receipt() as body:
                self._add_receipt(body)
            case Outcome(decision_id=id_) as body if id_ in self.interventions:
                self.interventions[id_].outcome = body
            case Alert(state="raised") as body:
                self.alerts.append(body)

    def _is_new(self, message_kind: str, incarnation: int, n: int) -> bool:
        if (incarnation, n) <= self._latest.get(message_kind, (0, -1)):
            return False
        self._latest[message_kind] = (incarnation, n)
        return True

    def _add_receipt(self, receipt: Receipt) -> None:
        if receipt.status == "applied":
            self.values_now[receipt.actuator] = receipt.after
            if self._intervenes(receipt.actuator):
                self.changes.append((receipt.tick, receipt.actuator))
        if receipt.decision_id in self.interventions:
            self.interventions[receipt.decision_id].receipt = receipt

    def _intervenes(self, actuator: str) -> bool:
        specs = self.run.actuators if self.run is not None else ()
        return next((spec.intervenes for spec in specs if spec.name == actuator), True)

    def add_readings(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add the readings of one tick, later than all before it."""
        _append_thinned((self.ticks, tick), (self.steps, step), count=self.observation_count)
        lowest, highest = self.step_range if self.observation_count else (step, step)
        self.step_range = min(lowest, step), max(highest, step)
        self.observation_count += 1
        for name, value in metrics.items():
            ticks, values = self.series.setdefault(name, ([], []))
            _append_thinned((ticks, tick), (values, value), count=self._counts[name])
            self._counts[name] += 1

    def _add_decision(self, decision: Decision) -> None:
        if decision.approves in self.interventions:
            self.interventions[decision.id] = self.interventions[decision.approves]
            return
        agents = tuple(line.agent for line in decision.tally if line.stance == "propose")
        if not agents or decision.command:
            return
        votes = [vote for agent in agents if (vote := self._votes.get((decision.actuator, agent)))]
        symptoms = read_symptoms(entry for vote in votes for entry in vote.evidence)
        self.interventions[decision.id] = Intervention(decision, agents, symptoms)

    @property
    def started(self) -> RunStarted:
        """The latest announcement of the run. Raises ConfigError if the log has none."""
        if self.run is None:
            raise ConfigError("the log has no RunStarted message and cannot be diagnosed; is it the log of a run?")
        return self.run

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms for the events that were added before the first access."""
        return find_alarms(self.series, self.started.metrics)

    def step_at(self, tick: int) -> int:
        """Return the step of the first observation at or after the tick, or the last step."""
        return self.steps[min(bisect_left(self.ticks, tick), len(self.steps) - 1)]

    def first_change(self, *actuators: str) -> float:
        """Return the tick at which one of the knobs was first changed, or infinity."""
        return next((tick for tick, actuator in self.changes if actuator in actuators), math.inf)

    def finite(self, metric: str, first: int = 0, end: float = math.inf) -> list[tuple[int, float]]:
        """Return (tick, value) of the metric's finite readings from tick `first` to before tick `end`."""
        ticks, values = self.series.get(metric, ((), ()))
        pairs = zip(ticks, values, strict=True)
        return [(tick, value) for tick, value in pairs if first <= tick < end and math.isfinite(value)]

    def values(self, metric: str, first: int = 0, end: float = math.inf) -> list[float]:
        """Return the metric's finite readings from tick `first` to before tick `end`."""
        return [value for _, value in self.finite(metric, first, end)]


def _append_thinned(*lists_and_items: tuple[list[Any], Any], count: int) -> None:
    """Append an item to each of several parallel lists. `count` is the number of items before it, including dropped
    ones. Full lists lose every second item, and from then on accept only every second one."""
    stride = 1
    while count // stride >= MAX_READINGS:
        stride *= 2
    if count % stride:
        return
    for items, item in lists_and_items:
        if len(items) >= MAX_READINGS:
            del items[1::2]
        items.append(item)

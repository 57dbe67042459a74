"""What the controller did to a run, read from its log: changes, rollbacks, silent agents, and the step of each tick."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunStarted, Value

SCALE = "optimizer.lr_scale"


@dataclass(frozen=True)
class Change:
    """An adopted decision that the learner carried out."""

    tick: int
    """The receipt's tick. The next optimizer step is the first with the change."""
    step: int
    incarnation: int
    actuator: str
    before: Value
    after: Value
    agent: str
    """The agent whose proposal had the most weight."""
    reason: str


@dataclass(frozen=True)
class Actions:
    """The controller's actions in one run. Plain values: they travel between processes and into JSON."""

    changes: list[Change] = field(default_factory=list)
    measurements: int = 0
    """Evaluations and checkpoints that were decided: they change nothing."""
    not_applied: list[str] = field(default_factory=list)
    """Other receipts of adopted decisions: status, actuator and reason."""
    steps: list[list[int]] = field(default_factory=list)
    """Per incarnation, per tick: the optimizer step that was observed."""
    first_ticks: list[int] = field(default_factory=list)
    """Per incarnation: the tick before its first one. Ticks count through all trainings of a log."""
    cannot_fire: dict[str, str] = field(default_factory=dict)
    """Agent → why it cannot fire."""
    same_place: int = 0
    """Most rollbacks to one step without a better held-out reading in between."""
    held_out: list[list[str]] = field(default_factory=list)
    """Per incarnation: the metrics that were announced as held out."""


def read(events: Iterable[Event]) -> Actions:
    """Read a whole log, in its order."""
    decisions: dict[str, Decision] = {}
    changes: list[Change] = []
    not_applied: list[str] = []
    steps: list[list[int]] = []
    first_ticks: list[int] = []
    held_out: list[list[str]] = []
    cannot_fire: dict[str, str] = {}
    best: dict[str, float] = {}
    better: dict[str, str] = {}
    rollbacks: dict[Value, int] = {}
    same_place, measurements = 0, set[str]()
    harmless: frozenset[str] = frozenset()
    for event in events:
        match event.body:
            case RunStarted() as started:
                steps.append([])
                first_ticks.append(started.tick)
                better = {metric.name: metric.better for metric in started.metrics if metric.held_out}
                held_out.append(list(better))
                best, rollbacks = {}, {}
                harmless = frozenset(spec.name for spec in started.actuators if not spec.intervenes)
            case Observation() as observation:
                steps[-1].append(observation.step)
                if _improves(observation.metrics, better, best):
                    rollbacks = {}
            case Decision(verdict="adopted") as decision:
                decisions[decision.id] = decision
                if decision.actuator in harmless:
                    measurements.add(decision.id)
            case AgentStatus(state="cannot_fire" | "failed", reason=reason):
                cannot_fire[event.author] = reason
            case Receipt(status="applied") as receipt if receipt.decision_id in decisions:
                if receipt.actuator not in harmless:
                    changes.append(_change(receipt, decisions[receipt.decision_id], len(steps)))
                if receipt.actuator == ROLLBACK:
                    rollbacks[receipt.after] = rollbacks.get(receipt.after, 0) + 1
                    same_place = max(same_place, rollbacks[receipt.after])
            case Receipt() as receipt if receipt.decision_id in decisions:
                not_applied.append(f"{receipt.status} {receipt.actuator} at tick {receipt.tick}: {receipt.reason}")
            case _:
                pass
    silent = dict(sorted(cannot_fire.items()))
    return Actions(changes, len(measurements), not_applied, steps, first_ticks, silent, same_place, held_out)


def _improves(metrics: Mapping[str, float], better: Mapping[str, str], best: dict[str, float]) -> bool:
    """Whether a held-out reading is better than all before it. `best` is updated."""
    improved = False
    for name, direction in better.items():
        value = metrics.get(name, math.nan)
        signed = value if direction == "up" else -value
        if direction != "neither" and signed > best.get(name, -math.inf):
            best[name], improved = signed, True
    return improved


def _change(receipt: Receipt, decision: Decision, incarnation: int) -> Change:
    proposals = [line for line in decision.tally if line.stance == "propose" and not line.shadow]
    leading = max(proposals, key=lambda line: (line.weight, line.agent), default=None)
    return Change(
        receipt.tick,
        receipt.step,
        incarnation,
        receipt.actuator,
        receipt.before,
        receipt.after,
        leading.agent if leading else "",
        leading.rationale if leading else decision.reason,
    )


@dataclass(frozen=True)
class RateCheck:
    """An applied change of the learning rate's scale: the rate that the next step should have used, and did use."""

    tick: int
    scale: float
    expected: float
    used: float

    @property
    def matches(self) -> bool:
        return math.isclose(self.expected, self.used, rel_tol=1e-6, abs_tol=1e-12)


def rate_checks(
    actions: Actions, rates: Sequence[Sequence[float]], schedule: Sequence[Sequence[float]]
) -> list[RateCheck]:
    """Compare rates used under the controller with those of the control times the scale, per optimizer. The n-th
    incarnation has the n-th optimizer.

    The step after a receipt should use the schedule at the run's own step, which a rollback moves back, times the scale
    that was read back. A change after the last step is not checked, and neither is one that another follows at once.
    """
    checks = []
    for number, (first_tick, steps) in enumerate(zip(actions.first_ticks, actions.steps, strict=True), 1):
        changes = [change for change in actions.changes if change.incarnation == number and change.actuator == SCALE]
        last = {change.tick: change for change in changes}  # of several changes at one boundary, the last one counts
        if number > len(rates) or number > len(schedule):
            continue
        used, own = rates[number - 1], schedule[number - 1]
        measured_first = int(bool(steps) and steps[0] == 0)  # an observation before the first step
        for tick, change in last.items():
            after = tick - first_tick  # index of the next observation in this incarnation
            if after >= len(steps) or not isinstance(change.after, float):
                continue
            at_step = steps[after] - 1  # the observation after step n carries n; that step used entry n - 1
            if 0 <= at_step < len(own) and after - measured_first < len(used):
                checks.append(RateCheck(tick, change.after, own[at_step] * change.after, used[after - measured_first]))
    return checks

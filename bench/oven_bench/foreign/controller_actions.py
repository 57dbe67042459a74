"""What a run's log says of the controller's part in it: changes, rollbacks, who cannot fire, the steps of the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from oven_core.protocol.actuator_names import ROLLBACK
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunStarted, Value

SCALE = "optimizer.lr_scale"


@dataclass(frozen=True)
class Change:
    """An adopted decision that the learner has carried out."""

    tick: int
    """The receipt's: the first optimizer step under it is the next."""
    step: int
    incarnation: int
    actuator: str
    before: Value
    after: Value
    agent: str
    """Whose proposal weighed most."""
    reason: str
    """That agent's."""


@dataclass(frozen=True)
class Reading:
    """Plain values: it travels between processes and into JSON."""

    changes: list[Change] = field(default_factory=list)
    asked: int = 0
    """Evaluations and checkpoints that were decided and done: they change nothing."""
    not_applied: list[str] = field(default_factory=list)
    """Other receipts of adopted decisions: status, actuator, reason."""
    steps: list[list[int]] = field(default_factory=list)
    """Per incarnation, per tick: the optimizer step that was observed."""
    began: list[int] = field(default_factory=list)
    """Per incarnation: the tick before its first. Ticks count through all trainings of a log."""
    cannot_fire: dict[str, str] = field(default_factory=dict)
    """Agent → why."""
    same_place: int = 0
    """Most rollbacks to one restored step without a better held-out reading since the first of them."""
    held_out: list[list[str]] = field(default_factory=list)
    """Per incarnation: the metrics that were announced as held out."""


def read(events: Iterable[Event]) -> Reading:
    """Of a whole log, in its order."""
    decided: dict[str, Decision] = {}
    found = Reading()
    held_out: dict[str, str] = {}
    best: dict[str, float] = {}
    went_back: dict[Value, int] = {}
    same_place, asked = 0, set[str]()
    idle: frozenset[str] = frozenset()
    for event in events:
        body = event.body
        if isinstance(body, RunStarted):
            found.steps.append([])
            found.began.append(body.tick)
            found.held_out.append([metric.name for metric in body.metrics if metric.held_out])
            held_out = {metric.name: metric.better for metric in body.metrics if metric.held_out}
            best, went_back = {}, {}
            idle = frozenset(spec.name for spec in body.actuators if not spec.intervenes)
        elif isinstance(body, Observation):
            found.steps[-1].append(body.step)
            if _better(body.metrics, held_out, best):
                went_back = {}
        elif isinstance(body, Decision) and body.verdict == "adopted":
            decided[body.id] = body
            if body.actuator in idle:
                asked.add(body.id)
        elif isinstance(body, AgentStatus) and body.state == "cannot_fire":
            found.cannot_fire[event.author] = body.reason
        elif isinstance(body, Receipt) and body.decision_id in decided:
            if body.status != "applied":
                found.not_applied.append(f"{body.status} {body.actuator} at tick {body.tick}: {body.reason}")
            elif body.actuator not in idle:
                found.changes.append(_change(body, decided[body.decision_id], len(found.steps)))
            if body.status == "applied" and body.actuator == ROLLBACK:
                went_back[body.after] = went_back.get(body.after, 0) + 1
                same_place = max(same_place, went_back[body.after])
    return Reading(
        found.changes,
        len(asked),
        found.not_applied,
        found.steps,
        found.began,
        dict(sorted(found.cannot_fire.items())),
        same_place,
        found.held_out,
    )


def _better(metrics: dict[str, float], held_out: dict[str, str], best: dict[str, float]) -> bool:
    """Whether a held-out reading is better than all before it; `best` then has it."""
    improved = False
    for name, better in held_out.items():
        value = metrics.get(name, math.nan)
        signed = value if better == "up" else -value
        if better != "neither" and signed > best.get(name, -math.inf):
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
    """Of one applied change of the rate's scale: what the optimizer should have used right after it, and did."""

    tick: int
    scale: float
    expected: float
    used: float

    @property
    def matches(self) -> bool:
        return math.isclose(self.expected, self.used, rel_tol=1e-6, abs_tol=1e-12)


def rate_checks(
    reading: Reading, rates: Sequence[Sequence[float]], schedule: Sequence[Sequence[float]]
) -> list[RateCheck]:
    """`rates` were used under the controller, `schedule` without it, per optimizer; the n-th incarnation has the n-th.

    The step after a receipt is held against the schedule at the run's own step, which a rollback sets back, times the
    scale that was read back. A change after the last step is not checked, nor is one that another follows at once.
    """
    found = []
    for number, (began, steps) in enumerate(zip(reading.began, reading.steps, strict=True), 1):
        changes = [one for one in reading.changes if one.incarnation == number and one.actuator == SCALE]
        last = {one.tick: one for one in changes}  # of several at one boundary the last holds
        if number > len(rates) or number > len(schedule):
            continue
        used, own = rates[number - 1], schedule[number - 1]
        first = int(bool(steps) and steps[0] == 0)  # what was measured before the first step came with none
        for tick, one in last.items():
            after = tick - began  # where the next observation stands in this incarnation's
            if after >= len(steps) or not isinstance(one.after, float):
                continue
            at = steps[after] - 1  # the observation after step n carries n; it used the schedule's n-th entry
            if 0 <= at < len(own) and after - first < len(used):
                found.append(RateCheck(tick, one.after, own[at] * one.after, used[after - first]))
    return found

"""An agent's read-only view of a run: recent observations, knobs, receipts and open ballots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

from oven_core.protocol.actuators import ROLLBACK, UNDO
from oven_core.protocol.alerts import MAX_REASON_LENGTH, Alert
from oven_core.protocol.evidence import signal_of_metrics
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Observation, Receipt, RunStarted, Value, Vote

MIN_KNOB_FACTOR = 1.2
"""Minimum factor by which `Knob.lowered_to` and `Knob.raised_to` change a knob."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting of the run that decisions may change, with its current value."""

    spec: ActuatorSpec
    value: Value
    changed_at: int | None = None
    """Tick of the last receipt that changed the knob; None if it still has its announced value."""

    @property
    def number(self) -> float:
        """The value of a scalar. Raises TypeError for other kinds."""
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}, and its value {self.value!r} is not a number")
        return float(self.value)

    @property
    def shares(self) -> dict[str, float]:
        """The value of a simplex. Raises TypeError for other kinds."""
        if not isinstance(self.value, dict):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}, and its value {self.value!r} has no shares")
        return dict(self.value)

    def bounded(self, value: float) -> float:
        """Return `value` clipped to the announced bounds."""
        low = self.spec.low if self.spec.low is not None else value
        high = self.spec.high if self.spec.high is not None else value
        return min(max(value, low), high)

    def lowered_to(self, value: float) -> float | None:
        """Return `value` clipped to the announced bounds, or None if that hardly lowers the knob (MIN_KNOB_FACTOR)."""
        lowered = self.bounded(value)
        return lowered if lowered <= self.number / MIN_KNOB_FACTOR else None

    def raised_to(self, value: float) -> float | None:
        """Return `value` clipped to the announced bounds, or None if that hardly raises the knob (MIN_KNOB_FACTOR)."""
        raised = self.bounded(value)
        return raised if raised >= self.number * MIN_KNOB_FACTOR else None


def change_of(receipt: Receipt) -> float:
    """Return the change of a numeric actuator, or 0 for other kinds."""
    before, after = receipt.before, receipt.after
    return after - before if isinstance(before, int | float) and isinstance(after, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The state of a run at its newest tick."""

    run: RunStarted
    observations: Sequence[Observation]
    """The newest observations, oldest first: at least one and at most 512."""
    knobs: Mapping[str, Knob]
    receipts: Sequence[Receipt]
    """All receipts of the run so far, oldest first."""
    open_ballots: Mapping[str, BallotOpened]
    """Open ballots by actuator."""
    commanded: Set[str] = frozenset()
    """Ids of decisions that an operator made or approved."""
    new_ticks: int = 1
    """Number of ticks since the agent's last window, at least 1. An agent that lags behind a fast run skips ticks."""
    earlier: Sequence[tuple[int, int, float]] = ()
    """(tick, step, value) of held-out readings older than `observations` that no rollback discarded."""
    reads: Sequence[str] = ()
    """Metrics on which the agent's votes rest, unless a vote names others."""

    @property
    def last(self) -> Observation:
        """The newest observation."""
        return self.observations[-1]

    @property
    def tick(self) -> int:
        """The tick of the newest observation."""
        return self.last.tick

    @property
    def progress(self) -> float:
        """The learner's progress, from 0 to 1."""
        return self.last.progress

    def is_new(self, tick: int) -> bool:
        """Return whether the agent has not voted on this tick yet."""
        return tick > self.tick - self.new_ticks

    def series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[float]:
        """Return the metric's values after tick `after`, oldest first. With `last`, return only the newest ones."""
        values: list[float] = []
        for observation in reversed(self.observations):  # newest first, because most calls need only a few values
            if observation.tick <= after or len(values) == last:
                break
            value = observation.metrics.get(metric)
            if value is not None:
                values.append(value)
        values.reverse()
        return values

    def surviving_series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[tuple[int, float]]:
        """Return (tick, value) of the same measurements as `series`, without those that a rollback discarded. After a
        rollback, new values then follow those from before the restored snapshot, without the failure in between."""
        survivors: list[tuple[int, float]] = []
        newer_step = max_step = self.last.step
        abandoned_ranges = self._abandoned_ranges()
        for observation in reversed(self.observations):
            tick, step = observation.tick, observation.step
            if tick <= after or len(survivors) == last:
                break
            if abandoned_ranges and any(start < tick <= end for start, end in abandoned_ranges):
                continue
            if step > newer_step:  # a rollback happened after this observation
                max_step = min(max_step, newer_step - 1)
            newer_step = step
            value = observation.metrics.get(metric)
            if value is not None and step <= max_step:
                survivors.append((tick, value))
        survivors.reverse()
        return survivors

    def _abandoned_ranges(self) -> list[tuple[int, int]]:
        """Return the tick ranges (start, end] between each undone rollback and its undo."""
        restores = [r for r in self.receipts if r.actuator in (ROLLBACK, UNDO) and r.status == "applied"]
        return [(rollback.tick, undo.tick) for rollback, undo in pairwise(restores) if undo.actuator == UNDO]

    @property
    def jumps(self) -> list[Receipt]:
        """Receipts that replaced the run's weights, oldest first: rollbacks, undos, and actions of training scripts."""
        actuators = self._weight_actuators()
        return [r for r in self.receipts if r.actuator in actuators and r.status == "applied"]

    def _weight_actuators(self) -> set[str]:
        return {name for name, knob in self.knobs.items() if knob.spec.moves_weights}

    def applied(self, actuator: str) -> list[Receipt]:
        """Return the receipts that changed the actuator, oldest first."""
        return [r for r in self.receipts if r.actuator == actuator and r.status == "applied"]

    def last_change_tick(self, *actuators: str) -> int:
        """Return the tick of the last change of any of these actuators, or −1 if there was none. Measurements from
        before that tick describe another configuration. Without names, all actuators count except those that only copy
        or measure. A name such as `committee.*` matches all actuators with that prefix. The name `run.rollback` also
        covers everything else that replaces the weights, such as undoing a rollback."""
        watched_names = set(actuators) or {name for name, knob in self.knobs.items() if knob.spec.intervenes}
        if ROLLBACK in actuators:
            watched_names |= self._weight_actuators()
        return max(
            (r.tick for r in self.receipts if r.status == "applied" and is_named(r.actuator, watched_names)), default=-1
        )

    def propose(
        self,
        actuator: str,
        value: Value,
        *,
        confidence: float,
        why: str,
        target: str = "",
        expected_change: float = 0.0,
        horizon: int = 0,
        evidence: Sequence[str] = (),
        reads: Sequence[str] = (),
    ) -> Vote:
        """Propose to set `actuator` to `value`. `confidence` is the probability that this is better than no change.
        `reads` are the metrics on which the proposal rests, if not those of `Agent.reads`."""
        return Vote(
            actuator=actuator, stance="propose", value=value, tick=self.tick, target=target,
            expected_change=expected_change, horizon=horizon, confidence=confidence, rationale=why,
            evidence=(*evidence, *self._signal_entries(reads)),
        )  # fmt: skip

    def alert(self, symptom: str, metric: str, *, value: float, expected: float, why: str = "") -> Alert:
        """Report a current symptom, for `Agent.alerts`. `expected` is the bound that `value` exceeds."""
        return Alert(
            state="raised", symptom=symptom, metric=metric, value=value, expected=expected, tick=self.tick,
            reason=why[:MAX_REASON_LENGTH],
        )  # fmt: skip

    def answer(
        self, ballot: BallotOpened, stance: str, *, confidence: float, why: str, reads: Sequence[str] = ()
    ) -> Vote:
        """Vote "for", "against" or "abstain" on another agent's ballot. `reads` are the metrics on which the vote
        rests, if not those of `Agent.reads`."""
        fields = {"actuator": ballot.actuator, "ballot": ballot.id, "stance": stance, "tick": self.tick}
        evidence = self._signal_entries(reads)
        return Vote.model_validate({**fields, "confidence": confidence, "rationale": why, "evidence": evidence})

    def _signal_entries(self, reads: Sequence[str]) -> tuple[str, ...]:
        signal = signal_of_metrics(reads or self.reads, self.run.metrics)
        return (signal.entry,) if signal else ()


def is_named(actuator: str, names: Collection[str]) -> bool:
    """Return whether `names` contains the actuator, or a pattern such as `committee.*` that matches it."""
    return actuator in names or any(name.endswith(".*") and actuator.startswith(name[:-1]) for name in names)

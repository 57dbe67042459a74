"""What an agent votes on: the recent observations of a run, its knobs, and what was decided lately. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from oven_core.protocol.actuator_names import ROLLBACK, UNDO
from oven_core.protocol.alerts import REASON_LENGTH, Alert
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Observation, Receipt, RunStarted, Value, Vote


@dataclass(frozen=True, slots=True)
class Knob:
    """One actuator of a run."""

    spec: ActuatorSpec
    value: Value
    changed_at: int | None = None
    """Tick of the last receipt that changed it; None if it stands as announced."""

    @property
    def number(self) -> float:
        """The value of a scalar. Raises TypeError on other kinds."""
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}; its value {self.value!r} is not a number")
        return float(self.value)

    @property
    def shares(self) -> dict[str, float]:
        """The value of a simplex. Raises TypeError on other kinds."""
        if not isinstance(self.value, dict):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}; its value {self.value!r} has no shares")
        return dict(self.value)

    def bounded(self, value: float) -> float:
        """`value`, moved inside the announced bounds."""
        low = self.spec.low if self.spec.low is not None else value
        high = self.spec.high if self.spec.high is not None else value
        return min(max(value, low), high)


def change_of(receipt: Receipt) -> float:
    """By how much it changed a number; 0 of what is none."""
    before, after = receipt.before, receipt.after
    return after - before if isinstance(before, int | float) and isinstance(after, int | float) else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """A run as it stands at its newest tick."""

    run: RunStarted
    observations: Sequence[Observation]
    """Oldest first, at most the SDK's limit (512); never empty."""
    knobs: Mapping[str, Knob]
    receipts: Sequence[Receipt]
    """All of the run so far, oldest first."""
    open_ballots: Mapping[str, BallotOpened]
    """By actuator."""
    commanded: Set[str] = frozenset()
    """Decisions that an operator set or approved, by id."""

    @property
    def last(self) -> Observation:
        """The newest observation."""
        return self.observations[-1]

    @property
    def tick(self) -> int:
        """Its tick."""
        return self.last.tick

    @property
    def progress(self) -> float:
        """0 to 1, as the learner measures it."""
        return self.last.progress

    def series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[float]:
        """The metric's values, oldest first, where it was measured: after tick `after`, at most the `last` ones."""
        values: list[float] = []
        for observation in reversed(self.observations):  # from the newest: most questions are about the last few
            if observation.tick <= after or len(values) == last:
                break
            value = observation.metrics.get(metric)
            if value is not None:
                values.append(value)
        values.reverse()
        return values

    def surviving_series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[tuple[int, float]]:
        """(tick, value) of the metric on the way to the present weights, oldest first: as `series`, without what a
        rollback threw away. What comes after a rollback is compared with what led to the snapshot, not with the fall.
        """
        found: list[tuple[int, float]] = []
        newer, limit = self.last.step, self.last.step
        aside = self._aside()
        for observation in reversed(self.observations):
            if observation.tick <= after or len(found) == last:
                break
            if aside and any(left < observation.tick <= again for left, again in aside):
                continue
            if observation.step > newer:  # the step went back here
                limit = min(limit, newer - 1)
            newer = observation.step
            value = observation.metrics.get(metric)
            if value is not None and observation.step <= limit:
                found.append((observation.tick, value))
        found.reverse()
        return found

    def _aside(self) -> list[tuple[int, int]]:
        """After which tick and until which the run was on a way that it left again: rollbacks that were taken back."""
        ways = [r for r in self.receipts if r.actuator in (ROLLBACK, UNDO) and r.status == "applied"]
        return [(back.tick, undo.tick) for back, undo in pairwise(ways) if undo.actuator == UNDO]

    @property
    def jumps(self) -> list[Receipt]:
        """What put the run on other weights, oldest first: rollbacks, their undoing, and a script's own actions of that
        effect."""
        moving = self._moving()
        return [r for r in self.receipts if r.actuator in moving and r.status == "applied"]

    def _moving(self) -> set[str]:
        return {name for name, knob in self.knobs.items() if knob.spec.moves_weights}

    def applied(self, actuator: str) -> list[Receipt]:
        """The receipts that changed the actuator, oldest first."""
        return [r for r in self.receipts if r.actuator == actuator and r.status == "applied"]

    def last_change_tick(self, *actuators: str) -> int:
        """The tick after which none of the actuators (all, if none is named) has changed; −1 if they never did. With
        `.*` at its end a name stands for all that begin so, e.g. `committee.*`.

        Statistics before it describe another configuration: a receipt resets a window, but that of a copy or of a
        measurement. Where `run.rollback` is named, whatever else puts the run on other weights counts too, the taking
        back of a rollback for one.
        """
        turned = set(actuators) or {name for name, knob in self.knobs.items() if knob.spec.intervenes}
        if ROLLBACK in actuators:
            turned |= self._moving()
        return max(
            (r.tick for r in self.receipts if r.status == "applied" and is_named(r.actuator, turned)),
            default=-1,
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
    ) -> Vote:
        """A proposal: set `actuator` to `value`. `confidence` is the probability of beating doing nothing."""
        return Vote(
            actuator=actuator,
            stance="propose",
            value=value,
            tick=self.tick,
            target=target,
            expected_change=expected_change,
            horizon=horizon,
            confidence=confidence,
            rationale=why,
            evidence=tuple(evidence),
        )

    def alert(self, symptom: str, metric: str, *, value: float, expected: float, why: str = "") -> Alert:
        """That the symptom is there now, for `Agent.alerts`. `expected`: the bound that `value` is beyond."""
        return Alert(
            state="raised",
            symptom=symptom,
            metric=metric,
            value=value,
            expected=expected,
            tick=self.tick,
            reason=why[:REASON_LENGTH],
        )

    def answer(self, ballot: BallotOpened, stance: str, *, confidence: float, why: str) -> Vote:
        """A stance ("for", "against", "abstain") on somebody's ballot."""
        return Vote.model_validate(
            {
                "actuator": ballot.actuator,
                "ballot": ballot.id,
                "stance": stance,
                "tick": self.tick,
                "confidence": confidence,
                "rationale": why,
            }
        )


WindowMaker: TypeAlias = Callable[
    [
        RunStarted,
        Sequence[Observation],
        Mapping[str, Knob],
        Sequence[Receipt],
        Mapping[str, BallotOpened],
        Set[str],
    ],
    Window,
]
"""Makes a window of a session's fields, in the order of the window's own."""


def plain_window(
    run: RunStarted,
    observations: Sequence[Observation],
    knobs: Mapping[str, Knob],
    receipts: Sequence[Receipt],
    open_ballots: Mapping[str, BallotOpened],
    commanded: Set[str],
) -> Window:
    """A window that keeps the observations as they are now, whatever the session hears next."""
    return Window(run, list(observations), knobs, receipts, open_ballots, commanded)


def is_named(actuator: str, names: Collection[str]) -> bool:
    """Whether it is one of these; one that ends with `.*` stands for all that begin so."""
    return actuator in names or any(name.endswith(".*") and actuator.startswith(name[:-1]) for name in names)

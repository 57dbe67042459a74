"""Detect clear harm, and charge it to every agent that supported a change since the target was last healthy.

An outcome is void if the next change cuts its window short, or if nothing was measured before. An agent that turned
knobs fast enough could do any harm without being scored. So the target's healthy level is also compared with the
measurements since then, even if changes overlap. Harm is clear at CLEAR standard errors with every new
measurement worse than every old one, or if the target stopped being finite.

An agent that vetoed a change supported the unchanged state and is charged in the same way. A change made while the
target is already falling is a remedy and is not charged for the earlier fall. A rollback is charged to no agent. After
a rollback, measurements are compared with the restored step's original level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.measurements import Measurements, effect, sound
from oven_core.mesh.reputation import Stance

CLEAR: Final = 4.0
"""Threshold in standard errors. Every measurement is tested, so chance alone would exceed a threshold of two."""
FALLING: Final = 2.0
"""Standard errors below the earlier measurements from which a target counts as falling."""
MIN_FALL: Final = 0.02
"""Minimum fall as a share of the level, because a constant level has no noise to compare with."""
PATIENCE: Final = 5
"""Number of horizons to look back for a level."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one target: the agents that supported changes since tick `since`, and measurements before and
    after."""

    target: str
    sign: int
    since: int
    agents: Mapping[str, Stance]
    before: tuple[float, ...]
    after: tuple[float, ...]
    broken: bool
    """The target is no longer finite."""


@dataclass(slots=True)
class _WatchedTarget:
    """A target, its healthy level, and the agents that supported changes since then."""

    sign: int
    horizon: int
    since: int
    """Tick of the newest change."""
    before: tuple[float, ...]
    agents: dict[str, Stance] = field(default_factory=dict)


@dataclass(slots=True)
class HarmWatch:
    """The watched targets of one training. `Outcomes` reports changes to it and queries it at every observation."""

    samples: int
    _watched: dict[str, _WatchedTarget] = field(default_factory=dict)

    def add_change(
        self, measured: Measurements, target: str, sign: int, horizon: int, agents: Mapping[str, Stance], tick: int
    ) -> None:
        """Record that `agents` changed, or vetoed, something at `tick` that `target` judges."""
        if not agents:
            return
        watched, veto = self._watched.get(target), "against" in agents.values()
        if watched is not None and (veto or self._gap(watched, self._newest(measured, target, watched)) < FALLING):
            watched.agents |= agents
            watched.since, watched.horizon = tick, max(watched.horizon, horizon)
            return
        before = _sound(measured.between(target, tick - horizon, tick))
        if len(before) < self.samples:
            before = _sound(measured.between(target, tick - PATIENCE * horizon, tick))[-self.samples :]
        if watched is None and (veto or not self._falls(before, sign)):
            self._watched[target] = _WatchedTarget(sign, horizon, tick, before, dict(agents))

    def add_rollback(self, measured: Measurements, step: float, tick: int) -> None:
        """Record a rollback to `step` at `tick`: the first measurements there become the level from now on."""
        for target, watched in list(self._watched.items()):
            watched.before = _sound(measured.of_steps(target, step - watched.horizon, step, since=-1, upto=tick))
            watched.since = tick
            if len(watched.before) < self.samples:
                del self._watched[target]

    def charges(self, measured: Measurements, tick: int) -> list[Charge]:
        """Return the clear harm visible now. A target that was harmed, or healthy for two horizons, is dropped."""
        charges: list[Charge] = []
        for target, watched in list(self._watched.items()):
            after, over = measured.between(target, watched.since, tick), tick - watched.since >= 2 * watched.horizon
            if len(watched.before) < self.samples:  # nothing was measured before: the first values since stand for it
                watched.before = _sound(after)[: self.samples]
                watched.since = tick if len(watched.before) >= self.samples else watched.since
                continue
            newest, broken = _sound(after)[-self.samples :], bool(after) and not sound(after[-1])
            if broken or self._gap(watched, newest) >= CLEAR:
                charges.append(
                    Charge(target, watched.sign, watched.since, watched.agents, watched.before, newest, broken)
                )
                over = True
            if over:
                del self._watched[target]
        return charges

    def _newest(self, measured: Measurements, target: str, watched: _WatchedTarget) -> tuple[float, ...]:
        return _sound(measured.between(target, watched.since, 2**53))[-self.samples :]

    def _gap(self, watched: _WatchedTarget, after: tuple[float, ...]) -> float:
        """Return the fall of the target in standard errors; 0 if it is no worse, or if too little was measured."""
        if len(after) < self.samples or len(watched.before) < self.samples:
            return 0.0
        worst_before = min(watched.sign * value for value in watched.before)
        best_after = max(watched.sign * value for value in after)
        change = effect(watched.before, after, watched.sign, watched.before)
        if best_after >= worst_before or -change.gain < MIN_FALL * abs(change.before):
            return 0.0
        return -change.gain / change.noise if change.noise > 0 else 2 * CLEAR

    def _falls(self, before: tuple[float, ...], sign: int) -> bool:
        """Whether the newest of these measurements are worse than the older ones."""
        older, newest = before[: -self.samples], before[-self.samples :]
        if len(older) < self.samples:
            return False
        change = effect(older, newest, sign, older)
        return change.gain < 0 and -change.gain >= FALLING * change.noise


def _sound(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(filter(sound, values))

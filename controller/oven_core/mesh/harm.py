"""Detect clear harm, and charge it to every agent that supported a change since the target was last healthy.

An outcome is void if the next change closes its window early, or if nothing was measured before the change. So an agent
that changed actuators fast enough could do any harm without being scored. Therefore the target's healthy level is also
compared with the measurements since then, even if changes overlap. Harm is clear if the target fell by HARM_THRESHOLD
standard errors and every new measurement is worse than every old one, or if the target is no longer finite.

An agent that vetoed a change supported the unchanged state and is charged in the same way. A change made while the
target is already falling is a remedy and is not charged for the earlier fall. A rollback is charged to no agent. After
a rollback, measurements are compared with the restored step's original level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.measurements import Measurements, effect, is_sound
from oven_core.mesh.reputation import Stance

HARM_THRESHOLD: Final = 4.0
"""Threshold in standard errors. Every new measurement is tested, so chance would often exceed a threshold of two."""
FALL_THRESHOLD: Final = 2.0
"""Minimum fall, in standard errors below the earlier measurements, at which a target counts as falling."""
MIN_FALL: Final = 0.02
"""Minimum fall as a share of the level, because a constant level has no noise to compare with."""
PATIENCE: Final = 5
"""Number of horizons to look back for enough measurements of the healthy level."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one target, and the agents that supported changes since tick `since`."""

    target: str
    sign: int
    since: int
    agents: Mapping[str, Stance]
    before: tuple[float, ...]
    after: tuple[float, ...]
    not_finite: bool
    """Whether the target is no longer finite."""


@dataclass(slots=True)
class _WatchedTarget:
    """A target, its healthy level, and the agents that have supported changes since then."""

    sign: int
    horizon: int
    since: int
    """Tick of the newest change."""
    before: tuple[float, ...]
    agents: dict[str, Stance] = field(default_factory=dict)


@dataclass(slots=True)
class HarmWatch:
    """The targets that are watched for harm. `Outcomes` records changes here and checks every observation."""

    samples: int
    _watched: dict[str, _WatchedTarget] = field(default_factory=dict)

    def add_change(
        self, measurements: Measurements, target: str, sign: int, horizon: int, agents: Mapping[str, Stance], tick: int
    ) -> None:
        """Record that `agents` made or vetoed a change at `tick` that is judged by `target`."""
        if not agents:
            return
        watched, veto = self._watched.get(target), "against" in agents.values()
        if watched is not None and (
            veto or self._gap(watched, self._newest(measurements, target, watched)) < FALL_THRESHOLD
        ):
            watched.agents |= agents
            watched.since, watched.horizon = tick, max(watched.horizon, horizon)
            return
        before = _sound_values(measurements.at_ticks(target, tick - horizon, tick))
        if len(before) < self.samples:
            before = _sound_values(measurements.at_ticks(target, tick - PATIENCE * horizon, tick))[-self.samples :]
        if watched is None and (veto or not self._is_falling(before, sign)):
            self._watched[target] = _WatchedTarget(sign, horizon, tick, before, dict(agents))

    def add_rollback(self, measurements: Measurements, step: float, tick: int) -> None:
        """Record a rollback to `step` at `tick`. The original measurements up to `step` become the healthy level."""
        for target, watched in list(self._watched.items()):
            watched.before = _sound_values(
                measurements.at_steps(target, step - watched.horizon, step, since=-1, until_tick=tick)
            )
            watched.since = tick
            if len(watched.before) < self.samples:
                del self._watched[target]

    def charges(self, measurements: Measurements, tick: int) -> list[Charge]:
        """Return the clear harm visible now. Stop watching harmed targets, and those healthy for two horizons."""
        charges: list[Charge] = []
        for target, watched in list(self._watched.items()):
            after = measurements.at_ticks(target, watched.since, tick)
            if len(watched.before) < self.samples:  # nothing was measured before, so the first values are used
                watched.before = _sound_values(after)[: self.samples]
                watched.since = tick if len(watched.before) >= self.samples else watched.since
                continue
            newest, not_finite = _sound_values(after)[-self.samples :], bool(after) and not is_sound(after[-1])
            is_harmed = not_finite or self._gap(watched, newest) >= HARM_THRESHOLD
            if is_harmed:
                charges.append(
                    Charge(target, watched.sign, watched.since, watched.agents, watched.before, newest, not_finite)
                )
            if is_harmed or tick - watched.since >= 2 * watched.horizon:
                del self._watched[target]
        return charges

    def _newest(self, measurements: Measurements, target: str, watched: _WatchedTarget) -> tuple[float, ...]:
        return _sound_values(measurements.at_ticks(target, watched.since, 2**53))[-self.samples :]

    def _gap(self, watched: _WatchedTarget, after: tuple[float, ...]) -> float:
        """Return how far the target fell, in standard errors, or 0 if it is no worse or too little was measured."""
        if len(after) < self.samples or len(watched.before) < self.samples:
            return 0.0
        worst_before = min(watched.sign * value for value in watched.before)
        best_after = max(watched.sign * value for value in after)
        change = effect(watched.before, after, watched.sign, watched.before)
        if best_after >= worst_before or -change.gain < MIN_FALL * abs(change.before):
            return 0.0
        return -change.gain / change.noise if change.noise > 0 else 2 * HARM_THRESHOLD

    def _is_falling(self, before: tuple[float, ...], sign: int) -> bool:
        """Return whether the newest of these measurements are worse than the older ones."""
        older, newest = before[: -self.samples], before[-self.samples :]
        if len(older) < self.samples:
            return False
        change = effect(older, newest, sign, older)
        return change.gain < 0 and -change.gain >= FALL_THRESHOLD * change.noise


def _sound_values(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(filter(is_sound, values))

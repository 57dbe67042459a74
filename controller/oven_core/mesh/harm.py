"""Detect clear harm, and charge it to every agent that supported a change since the target was last healthy.

An outcome is void if the next change closes its window early, or if nothing was measured before the change. So an agent
that changed actuators fast enough could do harm without being scored. Therefore this module also compares the healthy
level of a target (a metric that judges changes) with later measurements, even if changes overlap. Here a target "falls"
when it gets worse, so a rising loss is a fall. Harm is clear if a target fell by HARM_THRESHOLD standard errors and
every new measurement is worse than every old one, or if the target is no longer finite.

An agent that vetoed a change supported the unchanged state and is charged in the same way. A change made while the
target is already falling counts as a remedy, and is not charged for that fall. Rollbacks are never charged. After a
rollback, the healthy level is what was measured when the run first reached the restored step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.measurements import MAX_TICK, Measurements, is_sound, measure_effect
from oven_core.mesh.reputation import Stance

HARM_THRESHOLD: Final = 4.0
"""Threshold in standard errors. Two would often be exceeded by chance, because every new measurement is tested."""
FALL_THRESHOLD: Final = 2.0
"""Minimum fall, in standard errors, at which a target counts as falling."""
MIN_FALL: Final = 0.02
"""Minimum fall as a share of the healthy level, because a constant level has no noise to compare with."""
NOISELESS_FALL: Final = 2 * HARM_THRESHOLD
"""The size of a fall, in standard errors, if the standard error is 0. It counts as clear harm."""
LOOKBACK_HORIZONS: Final = 5
"""Maximum number of horizons before a change in which to look for measurements of the healthy level."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one target, and the agents that are charged with it."""

    target: str
    sign: int
    """1 if higher is better, −1 if lower is better."""
    since: int
    """Tick of the newest change before the harm."""
    agents: Mapping[str, Stance]
    before: tuple[float, ...]
    after: tuple[float, ...]
    not_finite: bool
    """Whether the target is no longer finite."""


@dataclass(slots=True)
class _WatchedTarget:
    """A target, its healthy level, and the agents that have supported changes since it was healthy."""

    sign: int
    horizon: int
    since: int
    """Tick of the newest change."""
    before: tuple[float, ...]
    agents: dict[str, Stance] = field(default_factory=dict)


@dataclass(slots=True)
class HarmWatch:
    """The targets that are watched for harm. `Outcomes` records changes here and checks every observation."""

    min_samples: int
    """Number of measurements needed on each side of a comparison."""
    _watched: dict[str, _WatchedTarget] = field(default_factory=dict)

    def add_change(
        self, measurements: Measurements, target: str, sign: int, horizon: int, agents: Mapping[str, Stance], tick: int
    ) -> None:
        """Record a change at `tick`, judged by `target`, that `agents` supported or vetoed."""
        if not agents:
            return
        watched, is_veto = self._watched.get(target), "against" in agents.values()
        if watched is not None:
            # A change while the target is falling is a remedy, so its supporters are not added.
            if is_veto or self._current_fall(measurements, target, watched) < FALL_THRESHOLD:
                watched.agents |= agents
                watched.since, watched.horizon = tick, max(watched.horizon, horizon)
            return
        before = _sound_values(measurements.at_ticks(target, tick - horizon, tick))
        if len(before) < self.min_samples:
            before = _sound_values(measurements.at_ticks(target, tick - LOOKBACK_HORIZONS * horizon, tick))[
                -self.min_samples :
            ]
        if is_veto or not self._is_falling(before, sign):
            self._watched[target] = _WatchedTarget(sign, horizon, tick, before, dict(agents))

    def add_rollback(self, measurements: Measurements, step: float, tick: int) -> None:
        """Record a rollback to `step` at `tick`. The original measurements up to `step` become the healthy level."""
        for target, watched in list(self._watched.items()):
            watched.before = _sound_values(
                measurements.at_steps(target, step - watched.horizon, step, since=-1, until_tick=tick)
            )
            watched.since = tick
            if len(watched.before) < self.min_samples:
                del self._watched[target]

    def collect_charges(self, measurements: Measurements, tick: int) -> list[Charge]:
        """Return the clear harm visible now. Stop watching harmed targets, and those without harm for two horizons."""
        charges: list[Charge] = []
        for target, watched in list(self._watched.items()):
            after = measurements.at_ticks(target, watched.since, tick)
            if len(watched.before) < self.min_samples:  # nothing was measured before, so the first values are used
                watched.before = _sound_values(after)[: self.min_samples]
                watched.since = tick if len(watched.before) >= self.min_samples else watched.since
                continue
            newest = _sound_values(after)[-self.min_samples :]
            not_finite = bool(after) and not is_sound(after[-1])
            is_harmed = not_finite or self._fall(watched, newest) >= HARM_THRESHOLD
            if is_harmed:
                charges.append(
                    Charge(target, watched.sign, watched.since, watched.agents, watched.before, newest, not_finite)
                )
            if is_harmed or tick - watched.since >= 2 * watched.horizon:
                del self._watched[target]
        return charges

    def _current_fall(self, measurements: Measurements, target: str, watched: _WatchedTarget) -> float:
        """Return `_fall` for the newest measurements."""
        all_since = _sound_values(measurements.at_ticks(target, watched.since, MAX_TICK))
        return self._fall(watched, all_since[-self.min_samples :])

    def _fall(self, watched: _WatchedTarget, after: tuple[float, ...]) -> float:
        """Return how far the target fell, in standard errors, or 0 if it did not fall or too little was measured."""
        if len(after) < self.min_samples or len(watched.before) < self.min_samples:
            return 0.0
        worst_before = min(watched.sign * value for value in watched.before)
        best_after = max(watched.sign * value for value in after)
        change = measure_effect(watched.before, after, watched.sign, watched.before)
        if best_after >= worst_before or -change.gain < MIN_FALL * abs(change.before):
            return 0.0
        return -change.gain / change.noise if change.noise > 0 else NOISELESS_FALL

    def _is_falling(self, before: tuple[float, ...], sign: int) -> bool:
        """Return whether the newest of these measurements are worse than the older ones."""
        older, newest = before[: -self.min_samples], before[-self.min_samples :]
        if len(older) < self.min_samples:
            return False
        change = measure_effect(older, newest, sign, older)
        return change.gain < 0 and -change.gain >= FALL_THRESHOLD * change.noise


def _sound_values(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(filter(is_sound, values))

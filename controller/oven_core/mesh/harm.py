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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.measurements import MAX_TICK, Measurements, has_diverged, measure_effect, sound_values
from oven_core.mesh.reputation import Stance

HARM_THRESHOLD: Final = 4.0
"""Threshold in standard errors. Two would often be exceeded by chance, because every new measurement is tested."""
FALL_THRESHOLD: Final = 2.0
"""Minimum fall, in standard errors, at which a target counts as falling."""
MIN_FALL: Final = 0.02
"""Minimum fall as a share of the healthy level, because a constant level has no noise to compare with."""
LOOKBACK_HORIZONS: Final = 5
"""Maximum number of horizons before a change in which to look for measurements of the healthy level."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one target, and the agents that are charged with it."""

    target: str
    sign: int
    """1 if higher is better, −1 if lower is better."""
    start_tick: int
    """Tick after which the harm was measured: that of the newest change, in most cases."""
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
    start_tick: int
    """Tick after which measurements are compared with the healthy level: that of the newest change, in most cases."""
    before: tuple[float, ...]
    """Measurements of the healthy level."""
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
            newest = sound_values(measurements.at_ticks(target, watched.start_tick, MAX_TICK))[-self.min_samples :]
            # A change while the target is falling is a remedy, so its supporters are not added.
            if is_veto or self._measure_fall(watched, newest) < FALL_THRESHOLD:
                watched.agents |= agents
                watched.start_tick, watched.horizon = tick, max(watched.horizon, horizon)
            return
        before = sound_values(measurements.at_ticks(target, tick - horizon, tick))
        if len(before) < self.min_samples:
            first_tick = tick - LOOKBACK_HORIZONS * horizon
            before = sound_values(measurements.at_ticks(target, first_tick, tick))[-self.min_samples :]
        if is_veto or not self._is_falling(before, sign):
            self._watched[target] = _WatchedTarget(sign, horizon, tick, before, dict(agents))

    def add_rollback(self, measurements: Measurements, step: float, tick: int) -> None:
        """Record a rollback to `step` at `tick`. The original measurements up to `step` become the healthy level."""
        for target, watched in list(self._watched.items()):
            values = measurements.at_steps(target, step - watched.horizon, step, since=-1, until_tick=tick)
            watched.before, watched.start_tick = sound_values(values), tick
            if len(watched.before) < self.min_samples:
                del self._watched[target]

    def collect_charges(self, measurements: Measurements, tick: int) -> list[Charge]:
        """Return the clear harm visible now. Stop watching harmed targets, and those without harm for two horizons."""
        charges: list[Charge] = []
        for target, watched in list(self._watched.items()):
            after = measurements.at_ticks(target, watched.start_tick, tick)
            if len(watched.before) < self.min_samples:  # nothing was measured before, so the first values are used
                watched.before = sound_values(after)[: self.min_samples]
                if len(watched.before) >= self.min_samples:
                    watched.start_tick = tick
                continue
            newest = sound_values(after)[-self.min_samples :]
            not_finite = has_diverged(after)
            is_harmed = not_finite or self._measure_fall(watched, newest) >= HARM_THRESHOLD
            if is_harmed:
                charges.append(
                    Charge(target, watched.sign, watched.start_tick, watched.agents, watched.before, newest, not_finite)
                )
            if is_harmed or tick - watched.start_tick >= 2 * watched.horizon:
                del self._watched[target]
        return charges

    def _measure_fall(self, watched: _WatchedTarget, after: tuple[float, ...]) -> float:
        """Return how far the target fell, in standard errors, or 0 if it did not fall or too little was measured."""
        if len(after) < self.min_samples or len(watched.before) < self.min_samples:
            return 0.0
        worst_before = min(watched.sign * value for value in watched.before)
        best_after = max(watched.sign * value for value in after)
        effect = measure_effect(watched.before, after, watched.sign, watched.before)
        if best_after >= worst_before or -effect.gain < MIN_FALL * abs(effect.before):
            return 0.0
        return -effect.gain / effect.noise if effect.noise > 0 else math.inf

    def _is_falling(self, before: tuple[float, ...], sign: int) -> bool:
        """Return whether the newest of these measurements are worse than the older ones."""
        older, newest = before[: -self.min_samples], before[-self.min_samples :]
        if len(older) < self.min_samples:
            return False
        effect = measure_effect(older, newest, sign, older)
        return effect.gain < 0 and -effect.gain >= FALL_THRESHOLD * effect.noise

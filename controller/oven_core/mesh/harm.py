"""Detect clear harm, and charge it to every agent that supported a change in force since the metric was last healthy.

An outcome is void if the next change closes its window early, or if nothing was measured before the change. And a
change is judged by the metric that its author named. So an agent that changed actuators fast enough, or named a metric
that its change does not hurt, could do harm without being scored. Therefore this module also compares the healthy level
of each watched metric with later measurements, even if changes overlap. A metric is watched while a change in force
named it. The main held-out metric, and the reward or the loss, are watched while any change is in force. A change is in
force for two horizons. Here a metric "falls" when it gets worse, so a rising loss is a fall. Harm is clear if a metric
fell by HARM_THRESHOLD standard errors and every new measurement is worse than every old one, or if the metric is no
longer finite.

Every change in force answers for every watched metric, whatever metric it named, with these exceptions:

- A change made while the metric is already falling counts as a remedy, and is not charged for that fall.
- A change that moves its own metric answers only for held-out metrics. The level of the others is measured anew,
  also after an operator's change.
- A change in one plan with a rollback is part of a remedy. It answers for its own metric and the main held-out one.
- Rollbacks are never charged. After a rollback, the healthy level is what was measured when the run first reached the
  restored step.
- An agent that vetoed a change supported the unchanged state. It answers for the metric that would have judged the
  change, and for the main held-out metric.

A change is charged once. A change after which the metric was healthy for long enough to show an effect is a less likely
cause, so it is charged by half. A vote `for` is also charged by half. So is a veto, because the effect of the change
was never seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from oven_core.mesh.measurements import Measurements, has_diverged, measure_effect, sound_values
from oven_core.mesh.reputation import Stance
from oven_core.protocol.messages import MetricSpec

HARM_THRESHOLD: Final = 4.0
"""Threshold in standard errors. Two would often be exceeded by chance, because every new measurement is tested."""
FALL_THRESHOLD: Final = 2.0
"""Minimum fall, in standard errors, at which a metric counts as falling."""
MIN_FALL: Final = 0.02
"""Minimum fall as a share of the healthy level, because a constant level has no noise to compare with."""
LOOKBACK_HORIZONS: Final = 5
"""Maximum number of horizons before a change in which to look for measurements of the healthy level."""
FORCE_HORIZONS: Final = 2
"""Number of horizons for which a change is in force."""


Scope = Literal["all", "held_out", "own"]
"""The metrics for which a change answers: all that are watched, those of them that are held out, or its own."""


@dataclass(frozen=True, slots=True)
class Change:
    """An applied change, or a vetoed ballot, and the agents that supported the new or the unchanged state."""

    decision_id: str
    """Empty for a veto."""
    target: str
    """The metric that judges the change."""
    agents: Mapping[str, Stance]
    tick: int
    horizon: int
    scope: Scope

    @property
    def is_veto(self) -> bool:
        return not self.decision_id

    def is_in_force(self, tick: int) -> bool:
        return tick - self.tick < FORCE_HORIZONS * self.horizon


@dataclass(frozen=True, slots=True)
class Blame:
    """An agent's part in clear harm."""

    stance: Stance
    share: float
    """Share of `rules.harm_charge` that the agent is charged, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one metric, and the agents that are charged with it."""

    target: str
    sign: int
    """1 if higher is better, −1 if lower is better."""
    start_tick: int
    """Tick after which the harm was measured: that of the newest change, in most cases."""
    agents: Mapping[str, Blame]
    failed_decisions: tuple[str, ...]
    """Decisions that another metric judges and that are charged in full."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    not_finite: bool
    """Whether the metric is no longer finite."""


@dataclass(slots=True)
class _WatchedMetric:
    """A metric, its healthy level, and the changes that answer for it."""

    metric: MetricSpec
    horizon: int
    start_tick: int
    """Tick after which measurements are compared with the healthy level: that of the newest change, in most cases."""
    before: tuple[float, ...]
    """Measurements of the healthy level."""
    changes: list[Change]

    @property
    def sign(self) -> int:
        return 1 if self.metric.better == "up" else -1


@dataclass(slots=True)
class HarmWatch:
    """The metrics that are watched for harm. `Outcomes` records changes here and checks every observation."""

    min_samples: int
    """Number of measurements needed on each side of a comparison."""
    _in_force: list[Change] = field(default_factory=list)
    """The changes in force since the newest rollback, oldest first, without charged ones and those that
    answer only for their own metrics."""
    _watched: dict[str, _WatchedMetric] = field(default_factory=dict)
    _charges: list[Charge] = field(default_factory=list)
    """Harm to a metric that was visible when the metric was first named."""
    _own_metric_tick: int = -1
    """Tick of the newest change that moved its own metric. Metrics that are not held out have no level from before."""

    def add_change(self, measurements: Measurements, change: Change, metrics: Sequence[MetricSpec]) -> None:
        """Record a change. Its own metrics are watched from now on."""
        self.watch(measurements, metrics, change.tick)
        if not change.agents:
            return
        watched_metrics = [watched.metric for watched in self._watched.values() if change.scope != "own"]
        for metric in {metric.name: metric for metric in (*watched_metrics, *metrics)}.values():
            self._add_answering(measurements, metric, change)
        if change.scope != "own":
            self._in_force.append(change)

    def watch(self, measurements: Measurements, metrics: Sequence[MetricSpec], tick: int) -> None:
        """Watch these metrics as if the first change in force had named them, and charge harm that is already visible.

        So an agent's harm to a metric counts, even if the first to name the metric is the agent that repairs it."""
        self._in_force = [change for change in self._in_force if change.is_in_force(tick)]
        for metric in metrics:
            if metric.name in self._watched:
                continue
            for change in self._in_force:
                self._add_answering(measurements, metric, change)
            if metric.name in self._watched:
                self._charges += self._check(measurements, self._watched[metric.name], tick)

    def measure_anew(self, tick: int) -> None:
        """Measure the healthy levels of metrics that are not held out again from `tick` on, when a change moved its own
        metric."""
        self._own_metric_tick = tick
        for watched in self._watched.values():
            if not watched.metric.held_out:
                watched.start_tick, watched.before = tick, ()

    def add_rollback(self, measurements: Measurements, step: float, tick: int) -> None:
        """Record a rollback to `step` at `tick`. The original measurements up to `step` become the healthy level."""
        self._in_force.clear()  # a metric named from now on has no level from before these changes to compare with
        for target, watched in list(self._watched.items()):
            since = self._level_tick(watched.metric)
            values = measurements.at_steps(target, step - watched.horizon, step, since=since, until_tick=tick)
            watched.before, watched.start_tick = sound_values(values), tick
            if len(watched.before) < self.min_samples:
                del self._watched[target]

    def collect_charges(self, measurements: Measurements, tick: int) -> list[Charge]:
        """Return the clear harm visible now. Stop watching metrics for which no change in force answers."""
        for watched in list(self._watched.values()):
            self._charges += self._check(measurements, watched, tick)
        charges, self._charges = self._charges, []
        return charges

    def _level_tick(self, metric: MetricSpec) -> int:
        """Return the tick from which on measurements of the metric are comparable, or −1 if all are."""
        return -1 if metric.held_out else self._own_metric_tick

    def _add_answering(self, measurements: Measurements, metric: MetricSpec, change: Change) -> None:
        """Add a change to those that answer for the metric, unless it is a remedy or moves the metric itself."""
        name, watched, since = metric.name, self._watched.get(metric.name), self._level_tick(metric)
        if watched is None:
            first_tick = max(since, change.tick - change.horizon)
            before = sound_values(measurements.at_ticks(name, first_tick, change.tick))
            if len(before) < self.min_samples:
                first_tick = max(since, change.tick - LOOKBACK_HORIZONS * change.horizon)
                before = sound_values(measurements.at_ticks(name, first_tick, change.tick))[-self.min_samples :]
            watched = _WatchedMetric(metric, change.horizon, change.tick, before, [])
            is_falling = self._is_falling(before, watched.sign)
        else:
            newest = sound_values(measurements.at_ticks(name, watched.start_tick, change.tick))[-self.min_samples :]
            is_falling = self._measure_fall(watched, newest) >= FALL_THRESHOLD
        if is_falling and not change.is_veto:
            return
        if change.scope != "held_out" or metric.held_out:
            self._watched[name] = watched
            watched.changes.append(change)
            watched.start_tick = max(since, change.tick)
            watched.horizon = max(watched.horizon, change.horizon)

    def _check(self, measurements: Measurements, watched: _WatchedMetric, tick: int) -> list[Charge]:
        """Return the charge if harm to the metric is clear. Stop watching it then, or if no change is left."""
        name = watched.metric.name
        watched.changes = [change for change in watched.changes if change.is_in_force(tick)]
        if not watched.changes:
            self._watched.pop(name, None)
            return []
        after = measurements.at_ticks(name, watched.start_tick, tick)
        if len(watched.before) < self.min_samples:  # nothing was measured before, so the first values are used
            watched.before = sound_values(after)[: self.min_samples]
            if len(watched.before) >= self.min_samples:
                watched.start_tick = tick
            return []
        newest = sound_values(after)[-self.min_samples :]
        not_finite = has_diverged(after)
        if not not_finite and self._measure_fall(watched, newest) < HARM_THRESHOLD:
            return []
        charge = self._charge(measurements, watched, tick, newest, not_finite)
        self._settle(watched.changes)
        self._watched.pop(name, None)
        return [charge]

    def _charge(
        self,
        measurements: Measurements,
        watched: _WatchedMetric,
        tick: int,
        newest: tuple[float, ...],
        not_finite: bool,
    ) -> Charge:
        blames: dict[str, Blame] = {}
        failed: list[str] = []
        for change in watched.changes:
            was_healthy = self._was_healthy_after(measurements, watched, change, tick)
            if not was_healthy and change.target != watched.metric.name and not change.is_veto:
                failed.append(change.decision_id)
            for agent, stance in change.agents.items():
                share = (0.5 if was_healthy else 1.0) * (0.5 if stance == "for" or change.is_veto else 1.0)
                if agent not in blames or share > blames[agent].share:
                    blames[agent] = Blame(stance, share)
        name, start_tick = watched.metric.name, watched.start_tick
        return Charge(name, watched.sign, start_tick, blames, tuple(failed), watched.before, newest, not_finite)

    def _was_healthy_after(
        self, measurements: Measurements, watched: _WatchedMetric, change: Change, tick: int
    ) -> bool:
        """Return whether the metric was healthy long enough after the change: past half of its horizon."""
        values = sound_values(measurements.at_ticks(watched.metric.name, change.tick + change.horizon // 2, tick))
        worst_before = min(watched.sign * value for value in watched.before)
        healthy = [n for n, value in enumerate(values, 1) if watched.sign * value >= worst_before]
        return bool(healthy) and healthy[-1] >= self.min_samples

    def _settle(self, charged: Sequence[Change]) -> None:
        """Forget charged changes, because one change is charged once, whatever number of metrics it hurts."""
        self._in_force = [change for change in self._in_force if change not in charged]
        for watched in self._watched.values():
            watched.changes = [change for change in watched.changes if change not in charged]

    def _measure_fall(self, watched: _WatchedMetric, after: tuple[float, ...]) -> float:
        """Return how far the metric fell, in standard errors, or 0 if it did not fall or too little was measured."""
        if len(after) < self.min_samples or len(watched.before) < self.min_samples:
            return 0.0
        is_apart = max(after) < min(watched.before) if watched.sign > 0 else min(after) > max(watched.before)
        if not is_apart:
            return 0.0
        effect = measure_effect(watched.before, after, watched.sign, watched.before)
        if -effect.gain < MIN_FALL * abs(effect.before):
            return 0.0
        return -effect.gain / effect.noise if effect.noise > 0 else math.inf

    def _is_falling(self, before: tuple[float, ...], sign: int) -> bool:
        """Return whether the newest of these measurements are worse than the older ones."""
        older, newest = before[: -self.min_samples], before[-self.min_samples :]
        if len(older) < self.min_samples:
            return False
        effect = measure_effect(older, newest, sign, older)
        return effect.gain < 0 and -effect.gain >= FALL_THRESHOLD * effect.noise

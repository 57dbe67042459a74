"""Detects lost progress: a collapsed reward, or a loss that rose again after it had fallen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from oven_agents.sdk.window import Window
from oven_agents.stats.robust_statistics import best_level, expected_maximum, noise
from oven_agents.stats.symptoms import is_active

DECLINE_TICKS = 5
"""Number of ticks just before a fall that do not count as healthy."""

START_TICKS = 3
"""Number of first losses whose highest is the loss at the start. They precede most of the training."""
RISE_TICKS = 12
"""Number of newest losses that must all be above the start. A hard batch, or the first steps of an optimizer without a
warm-up, raise fewer."""
EARLY_PROGRESS = 0.3
"""Progress of the run, 0 to 1, after which a rise is more likely to have another cause than the rate: data, a fault.
The progress of a run without a known end is 0, so only the window limits the search there."""
MIN_RISE = 0.25
"""Share of the loss at the start by which all RISE_TICKS losses must exceed it. None of our tuned runs had so many
such losses in a row (docs/experiments.md)."""


class LossAboveStart(NamedTuple):
    """A loss that rose above its value at the start."""

    start: float
    current: float


class LostReward(NamedTuple):
    """A reward series that collapsed."""

    name: str
    best: float
    """Best level of the reward."""
    current: float
    low_ticks: int
    """Number of ticks since the reward was last at least half of its best level."""


def lost_rewards(window: Window, since: int, *, min_level: float, by_level: bool) -> list[LostReward]:
    """Return the collapsed reward series if every series lost half of its best level since tick `since`, otherwise an
    empty list. A series whose best level is below `min_level` is ignored. With `by_level`, the rewards of the
    curriculum's levels (`reward/NAME`) are used instead of their mean, if there are any."""
    level_rewards = [spec.name for spec in window.run.metrics if spec.name.startswith("reward/")]
    names = level_rewards if level_rewards and by_level else ["reward"]
    collapsed = []
    for name in names:
        values = window.series(name, after=since)
        if len(values) < 4:
            continue
        if len(names) == 1 and max(values[-3:]) >= 0.5 * max(values):
            return []  # a fast path for most ticks: the best level cannot exceed the maximum value
        best = level_before(values, 3)
        if best < min_level:
            continue  # a loss of half of such a low level is within the noise
        if not is_half_lost(values, 3, best):
            return []
        low_ticks = next((i for i, value in enumerate(reversed(values)) if value >= 0.5 * best), len(values))
        collapsed.append(LostReward(name, best, median(values[-3:]), low_ticks))
    return collapsed


def level_before(values: Sequence[float], count: int) -> float:
    """Return the best level before the newest `count` values. The first value alone counts as a level, because a
    collapse may begin right after it."""
    return max(best_level(values[:-count]), values[0])


def is_half_lost(values: Sequence[float], count: int, best: float) -> bool:
    """Return whether all of the newest `count` values lost half of the level `best`, beyond the noise."""
    highest = max(values[-count:])
    return highest < 0.5 * best and best - highest >= 3 * noise(values[:-count])


def last_healthy_tick(window: Window, since: int) -> int:
    """Return the last tick with a reward within a tenth of its best level, minus DECLINE_TICKS. Return `since`
    if no reward was measured after that tick."""
    rewards = [(o.tick, o.metrics["reward"]) for o in window.observations if o.tick > since and "reward" in o.metrics]
    finite = [(tick, value) for tick, value in rewards if math.isfinite(value)]
    if not finite:
        return since
    values = [value for _, value in finite]
    best = max(best_level(values), values[0])
    threshold = min(0.9 * best, 1.1 * best)  # below `best`, also if it is negative
    return max(tick for tick, value in finite if value >= threshold) - DECLINE_TICKS


def describe_loss_relapse(window: Window, since: int, *, share: float, ticks: int) -> str | None:
    """Describe a rise that undid `share` of the loss's improvement since tick `since`, or return None. The loss must
    have stayed that high for `ticks` ticks, beyond the noise, and must not be falling again. If the loss never
    improved, it must have stayed high for twice as long, because many runs get worse in their first steps."""
    values = [value for _, value in window.surviving_series("loss", after=since) if math.isfinite(value)]
    for high_ticks, expects_improvement in ((ticks, True), (2 * ticks, False)):
        before, last = values[:-high_ticks], values[-high_ticks:]
        if len(before) < 3:
            return None
        first = median(before[:3])
        best = -best_level([-value for value in before])  # the lowest level of the loss
        noise_threshold = (3 + expected_maximum(len(before))) * noise(before)  # chance alone lowers the best level, too
        is_recovering = median(last[high_ticks // 2 :]) < median(last[: high_ticks // 2]) - noise(last)
        has_improved = first - best > noise_threshold
        if is_recovering or has_improved != expects_improvement:
            continue
        if min(last) - best > max(share * (first - best), noise_threshold):
            return f"loss fell from {first:.3g} to {best:.3g} and has risen to {median(last):.3g} again"
    return None


def find_loss_above_start(window: Window) -> LossAboveStart | None:
    """Return the loss if RISE_TICKS values in a row were far above those at the start, early in the run, and its level
    has not come back down since. Return None also if the window no longer contains the start."""
    if window.observations[0].step > 1:
        return None
    points = [(tick, value) for tick, value in window.surviving_series("loss") if math.isfinite(value)]
    values = [value for _, value in points]
    if len(values) < START_TICKS + RISE_TICKS:
        return None
    start = max(values[:START_TICKS])
    early_ticks = {observation.tick for observation in window.observations if observation.progress <= EARLY_PROGRESS}

    def newest(index: int) -> list[float]:
        return values[max(START_TICKS, index + 1 - RISE_TICKS) : index + 1]

    def begins(index: int) -> bool:
        recent = newest(index)
        is_high = len(recent) == RISE_TICKS and min(recent) > start + MIN_RISE * abs(start)
        return is_high and points[index][0] in early_ticks

    if not is_active(len(values), begins, lambda index: index < START_TICKS or median(newest(index)) <= start):
        return None
    return LossAboveStart(start, median(newest(len(values) - 1)))

"""What a run had gained and lost again: a reward that collapsed, a loss that is back where it was."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from oven_agents.sdk.window import Window
from oven_agents.stats.robust_statistics import best_level, noise

EASED = 5
"""Ticks before a fall that are not trusted either."""


class LostReward(NamedTuple):
    """A reward series that collapsed."""

    name: str
    was: float
    """Its best level."""
    now: float
    low: int
    """Ticks since it was last at half of that."""


def lost_rewards(window: Window, since: int, *, telling: float, by_level: bool) -> list[LostReward]:
    """Every reward series, if all of them lost half of their best level since tick `since`; else nothing. A best level
    below `telling` says nothing. `by_level`: the rewards by level instead of their mean, where there are some."""
    levels = [m.name for m in window.run.metrics if m.name.startswith("reward/")]
    names = levels if levels and by_level else ["reward"]
    losses = []
    for name in names:
        values = window.series(name, after=since)
        if len(values) < 4:
            continue
        last = values[-3:]
        if len(names) == 1 and max(last) >= 0.5 * max(values):
            return []  # no level was above the greatest value: most ticks end here
        was = max(best_level(values[:-3]), values[0])
        if was < telling:
            continue  # half of almost nothing is within the noise
        if max(last) >= 0.5 * was or was - max(last) < 3 * noise(values[:-3]):
            return []
        low = next((i for i, value in enumerate(reversed(values)) if value >= 0.5 * was), len(values))
        losses.append(LostReward(name, was, median(last), low))
    return losses


def last_healthy(window: Window, since: int) -> int:
    """A tick well before the fall: EASED before the last one whose reward was at nine tenths of its best."""
    rewards = [(o.tick, o.metrics["reward"]) for o in window.observations if o.tick > since and "reward" in o.metrics]
    finite = [(tick, value) for tick, value in rewards if math.isfinite(value)]
    if not finite:
        return since
    values = [value for _, value in finite]
    best = min(max(best_level(values), values[0]), max(values))
    return max(tick for tick, value in finite if value >= 0.9 * best) - EASED


def loss_given_back(window: Window, since: int, *, share: float, ticks: int) -> str | None:
    """The loss's rise in words, where it has given back `share` of what it had gained since tick `since`, for `ticks`
    ticks, beyond its noise, and is not on its way back; or where it gained nothing and rose, for twice as long, since
    many runs lose something in their first steps. The best of many values is √(2 ln n) deviations of noise below their
    level by luck alone."""
    values = [value for _, value in window.surviving_series("loss", after=since) if math.isfinite(value)]
    for count, gained in ((ticks, True), (2 * ticks, False)):
        before, last = values[:-count], values[-count:]
        if len(before) < 3:
            return None
        first, best = median(before[:3]), -best_level([-value for value in before])
        by_chance = (3 + math.sqrt(2 * math.log(len(before)))) * noise(before)
        returns = median(last[count // 2 :]) < median(last[: count // 2]) - noise(last)
        if returns or (first - best > by_chance) != gained:
            continue
        if min(last) - best > max(share * (first - best), by_chance):
            return f"loss fell from {first:.3g} to {best:.3g} and is {median(last):.3g} again"
    return None

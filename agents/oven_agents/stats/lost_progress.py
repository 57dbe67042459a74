"""Detects lost progress: a reward that collapsed, or a loss that rose back."""

from __future__ import annotations

import math
from statistics import median
from typing import NamedTuple

from oven_agents.sdk.window import Window
from oven_agents.stats.robust_statistics import best_level, noise

EASED = 5
"""Ticks before a fall that do not count as healthy."""


class LostReward(NamedTuple):
    """A reward series that collapsed."""

    name: str
    was: float
    """The loss's best level."""
    now: float
    low: int
    """Ticks since it was last at half of its best level."""


def lost_rewards(window: Window, since: int, *, telling: float, by_level: bool) -> list[LostReward]:
    """Return all reward series if each lost half of its best level since tick `since`; otherwise nothing. A best level
    below `telling` is ignored. `by_level`: read the rewards by level instead of their mean, if there are any."""
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
    """Return the tick EASED before the last one whose reward was at nine tenths of its best."""
    rewards = [(o.tick, o.metrics["reward"]) for o in window.observations if o.tick > since and "reward" in o.metrics]
    finite = [(tick, value) for tick, value in rewards if math.isfinite(value)]
    if not finite:
        return since
    values = [value for _, value in finite]
    best = min(max(best_level(values), values[0]), max(values))
    return max(tick for tick, value in finite if value >= 0.9 * best) - EASED


def loss_given_back(window: Window, since: int, *, share: float, ticks: int) -> str | None:
    """Describe the loss's rise if, for `ticks` ticks and beyond its noise, it has given back `share` of its gain since
    tick `since` and is not falling again; or if it gained nothing and rose for twice as long, because many runs lose
    something in their first steps. None otherwise. By luck alone, the best of n values is √(2 ln n) deviations of noise
    below their level."""
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

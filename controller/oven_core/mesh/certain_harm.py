"""Harm that is beyond doubt, so that a remedy needs no second kind of evidence: values that are not finite, or a reward
that is gone."""

from __future__ import annotations

from typing import Final

from oven_core.mesh.measurements import Measurements, has_diverged, median, sound_values

REWARD: Final = "reward"
GONE_TICKS: Final = 5
"""Number of newest rewards that must all be low. If a quarter of the rewards are low, chance makes five in a row once
in 1,000 ticks."""
LEVEL_TICKS: Final = 20
"""Number of successive rewards whose lower quartile is a level that the run has held."""
GONE_SHARE: Final = 0.1
"""Share of its best level at which a reward counts as gone: what is left is mostly luck."""


def describe_certain_harm(measurements: Measurements, tick: int, recent_ticks: int) -> str:
    """Describe harm in the measurements of the last `recent_ticks` ticks, or return an empty string."""
    for name in measurements.names:
        if has_diverged(measurements.at_ticks(name, tick - recent_ticks, tick)):
            return f"{name} is not finite"
    rewards = sound_values(measurements.at_ticks(REWARD, -1, tick))
    earlier, newest = rewards[:-GONE_TICKS], rewards[-GONE_TICKS:]
    if max(newest, default=0.0) > GONE_SHARE * max(earlier, default=0.0):  # each level is at most the best reward
        return ""
    starts = range(0, len(earlier) - LEVEL_TICKS + 1, GONE_TICKS)
    levels = (sorted(earlier[start : start + LEVEL_TICKS])[LEVEL_TICKS // 4] for start in starts)
    best = max(levels, default=0.0)
    if best > 0 and max(newest) <= GONE_SHARE * best:
        return f"{REWARD} fell from {best:.3g} to {median(newest):.3g}"
    return ""

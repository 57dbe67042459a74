"""Whether a policy itself changed, or only what its judges say of it."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import at
from oven_agents.stats.objective import readings

GAUGES: Final = ("entropy", "kl", "completions/mean_length")
"""What a policy that changed shows by itself, no matter who judges it. Not its gradient, which is as long as rewards
are far apart."""
BEFORE = 16
"""Ticks before the onset that a gauge is held against."""
LEAST = 8
"""Values of a gauge before the onset that have to be measured: fewer tell the noise badly."""
DEVIATIONS = 4.0
"""Deviations of a single value's logarithm by which a gauge has to have moved."""
PLAINLY = 0.2
"""Difference of a gauge's logarithm that there has to be as well: a gauge with little noise moves by many deviations at
nothing."""
LOST: Final = 0.03
"""Of the best held-out reading."""
COLLAPSED: Final = 0.2
"""The same where the reward is gone: a policy that collapsed has lost more than noise."""


def quality_dropped(window: Window) -> bool | None:
    """Whether the newest held-out reading is plainly below the best of those that led to it; None below two."""
    values = [value for _, value in readings(window)]
    if len(values) < 2:
        return None
    best = max(values[:-1])
    return best - values[-1] > LOST * abs(best)


def policy_shifted(window: Window, onset: int) -> bool:
    """Since tick `onset`: by the best held-out reading that is younger, else by its own gauges. A reward that falls
    while none of them moves was taken away by its judges. True where nothing of it is measured."""
    before = [value for tick, value in readings(window) if tick < onset]
    after = [value for tick, value in readings(window) if tick >= onset]
    if before and after:
        return max(before) - max(after) > COLLAPSED * abs(max(before))
    shifts = [shift for gauge in GAUGES if (shift := _shift(window, gauge, onset)) is not None]
    return any(shifts) or not shifts


def _shift(window: Window, gauge: str, onset: int) -> bool | None:
    seen = [(tick, value) for tick, value in window.surviving_series(gauge) if tick >= onset - BEFORE]
    if any(not math.isfinite(value) for _, value in seen):
        return True
    logs = [(tick, math.log(value) if value > 0 else -math.inf) for tick, value in seen if value > 0 or tick >= onset]
    shift = at(logs, onset)
    if len(shift.before) < LEAST or not shift.now:
        return None
    return abs(shift.of_medians) > max(DEVIATIONS * shift.noise, PLAINLY)

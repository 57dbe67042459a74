"""Detects held-out readings that are past their best, even after a slow decline. Higher readings are better."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from oven_agents.stats.robust_statistics import bending_noise, expected_maximum

MIN_READINGS = 5
"""Number of readings that must be exceeded. Fewer give a poor estimate of their noise."""
MIN_RELATIVE_DROP = 0.02
"""Minimum drop, as a fraction of the best reading."""
SIGMAS = 3.3
"""Minimum drop beyond the expected maximum of the noise, in standard deviations."""
MIN_FALL_RATIO = 2.0
"""Minimum drop, as a multiple of the largest fall before the best reading."""
MIN_WORSE = 3
"""Number of newest readings that must all be worse than the best one by the minimum drop."""

MIN_CLEAR_DROP = 0.25
"""Loss of quality that is clear even if the run had gained less, as a fraction of the best reading."""


def is_past_best(values: Sequence[float]) -> bool:
    """Return whether the newest readings are all much worse than the best one. The drop must exceed MIN_RELATIVE_DROP
    of the best, the noise, and MIN_FALL_RATIO times the largest fall before it."""
    before = values[: values.index(max(values)) + 1]
    if len(values) - len(before) < MIN_WORSE or len(values) <= MIN_READINGS:
        return False
    best, noise = before[-1], (expected_maximum(len(values)) + SIGMAS) * bending_noise(values)
    min_drop = max(MIN_RELATIVE_DROP * abs(best), noise, MIN_FALL_RATIO * largest_fall(before))
    return best - max(values[-MIN_WORSE:]) > min_drop


def count_past_best(values: Sequence[float]) -> int:
    """Return the number of consecutive newest readings at which the readings were past their best."""
    count = 0
    while count < len(values) and is_past_best(values[: len(values) - count]):
        count += 1
    return count


def is_clear_loss(values: Sequence[float]) -> bool:
    """Return whether the newest readings have lost MIN_CLEAR_DROP of the best reading, or else no more than the run had
    gained before. A larger loss than any gain may be noise of a run that has learnt nothing. The newest reading must
    not have recovered half of the largest loss."""
    best = max(values)
    worst = min(values[values.index(best) :])
    gained, lost = best - fmean(values[:2]), best - fmean(values[-MIN_WORSE:])
    is_large = lost <= gained or lost >= MIN_CLEAR_DROP * abs(best)
    return is_large and best - values[-1] >= (best - worst) / 2


def largest_fall(values: Sequence[float]) -> float:
    """Return the largest fall of a value below the best value before it."""
    best_so_far = accumulate(values, max)
    return max(best - value for best, value in zip(best_so_far, values, strict=True))

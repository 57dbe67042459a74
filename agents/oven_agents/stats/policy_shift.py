"""Tests the policy behind a changed reward: whether the policy itself changed or only the judges of its completions,
and whether the completions were sampled from a different policy."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import shift_at
from oven_agents.stats.objective import readings

GAUGES: Final = ("entropy", "kl", "completions/mean_length")
"""Gauges that move only if the policy changes. Unlike the gradient norm, they do not depend on the judges."""
REFERENCE_TICKS = 16
"""Number of ticks before the onset that serve as a gauge's baseline."""
MIN_VALUES = 8
"""Minimum number of a gauge's values before the onset, for an estimate of its noise."""
MIN_DEVIATIONS = 4.0
"""Minimum shift of a gauge, in standard deviations of a single value's logarithm."""
MIN_SHIFT = 0.2
"""Minimum shift of a gauge's logarithm. It matters only for gauges with little noise."""
MIN_QUALITY_DROP: Final = 0.03
"""Relative drop from the best held-out reading that counts as lost quality."""
MIN_COLLAPSE_DROP: Final = 0.2
"""Relative drop from the best held-out reading that confirms a collapse of the reward."""
KL: Final = "kl"
MAX_MEAN_KL: Final = 200.0
"""Mean KL estimate, in nats per token, above which completions were sampled from a different policy."""
OFF_POLICY_TICKS: Final = 40
"""Number of newest ticks to test for a different policy, including those that a rollback discarded."""


def quality_dropped(window: Window) -> bool | None:
    """Return whether the newest held-out reading is more than MIN_QUALITY_DROP below the best, or None if unknown."""
    values = [value for _, value in readings(window)]
    if len(values) < 2:
        return None
    best = max(values[:-1])
    return best - values[-1] > MIN_QUALITY_DROP * abs(best)


def policy_shifted(window: Window, onset: int) -> bool:
    """Return whether the policy has changed since tick `onset`. Held-out readings decide, or GAUGES if there are none.
    If the reward falls and no gauge moves, the judges have changed instead. Return True if nothing was measured."""
    before = [value for tick, value in readings(window) if tick < onset]
    after = [value for tick, value in readings(window) if tick >= onset]
    if before and after:
        return max(before) - max(after) > MIN_COLLAPSE_DROP * abs(max(before))
    answers = [_has_shifted(window, gauge, onset) for gauge in GAUGES]
    return True in answers or all(answer is None for answer in answers)


def _has_shifted(window: Window, gauge: str, onset: int) -> bool | None:
    """Return whether the gauge has shifted since tick `onset`, or None if there are too few measurements."""
    points = [(tick, value) for tick, value in window.surviving_series(gauge) if tick >= onset - REFERENCE_TICKS]
    if any(not math.isfinite(value) for _, value in points):
        return True
    # After the onset, a value of 0 counts as an infinite shift. Before it, such a value is ignored.
    logs = [(tick, math.log(value) if value > 0 else -math.inf) for tick, value in points if value > 0 or tick >= onset]
    shift = shift_at(logs, onset)
    if len(shift.before) < MIN_VALUES or not shift.now:
        return None
    return abs(shift.median_difference) > max(MIN_DEVIATIONS * shift.noise, MIN_SHIFT)


def is_off_policy(window: Window, since: int | None = None) -> bool:
    """Return whether completions were sampled from a different policy in the last OFF_POLICY_TICKS ticks, or since tick
    `since` if that is longer ago.

    The KL to the reference model is estimated by r − 1 − ln r with r = π_ref/π on the sampled tokens (Schulman 2020,
    "Approximating KL divergence", k3; TRL's `kl`). On tokens that the policy sampled itself, r has a mean of 1 for any
    reference. So the average over many ticks exceeds MAX_MEAN_KL with a probability of at most 1/MAX_MEAN_KL (Markov's
    inequality). In floating point, the −ln r term is always far below this bound. The bound is relative to earlier
    estimates, because some trainers sum the KL over a completion.

    Off-policy tokens come from workers with outdated weights, a stale cache, or a tool's answer that is counted as part
    of a completion. Neither a rollback nor a stronger KL penalty helps in these cases.
    """
    ticks = OFF_POLICY_TICKS if since is None else max(OFF_POLICY_TICKS, window.tick - since)
    kls = window.surviving_series(KL)
    before = [value for tick, value in kls if tick <= window.tick - ticks and math.isfinite(value)]
    total = sum(value for value in window.series(KL, after=window.tick - ticks) if value > 0)  # NaN is skipped
    return total > MAX_MEAN_KL * ticks * max(1.0, median(before) if before else 1.0)

"""Tests whether the policy or only its judges changed, and whether completions come from another policy."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import shift_at
from oven_agents.stats.objective import readings

GAUGES: Final = ("entropy", "kl", "completions/mean_length")
"""Gauges that show a changed policy under any judge. Not the gradient, whose length follows the rewards' spread."""
BEFORE = 16
"""Ticks before the onset that a gauge is compared with."""
LEAST = 8
"""Fewest values of a gauge before the onset. Fewer estimate the noise badly."""
DEVIATIONS = 4.0
"""Deviations of a single value's logarithm by which a gauge must move."""
PLAINLY = 0.2
"""Least difference of a gauge's logarithm, for gauges with little noise."""
LOST: Final = 0.03
"""Share of the best held-out reading that counts as lost quality."""
COLLAPSED: Final = 0.2
"""The same if the reward is gone: a collapsed policy lost more than noise."""


def quality_dropped(window: Window) -> bool | None:
    """Return whether the newest held-out reading lost more than LOST of the best one; None below two readings."""
    values = [value for _, value in readings(window)]
    if len(values) < 2:
        return None
    best = max(values[:-1])
    return best - values[-1] > LOST * abs(best)


def policy_shifted(window: Window, onset: int) -> bool:
    """Return whether the policy changed since tick `onset`, by its held-out readings or otherwise by GAUGES. If the
    reward falls and no gauge moves, the judges changed. True if nothing was measured."""
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
    shift = shift_at(logs, onset)
    if len(shift.before) < LEAST or not shift.now:
        return None
    return abs(shift.of_medians) > max(DEVIATIONS * shift.noise, PLAINLY)


KL: Final = "kl"
BEYOND: Final = 200.0
"""Mean of the KL's estimate, in nats per token, above which completions come from another policy."""
LATELY: Final = 40
"""Ticks to read, also those that a rollback discarded, because the question is about the run and not its weights."""


def is_off_policy(window: Window, since: int | None = None) -> bool:
    """Return whether completions came from another policy in the last LATELY ticks, or since tick `since` if that is
    longer ago.

    The KL to the reference model is estimated by r − 1 − ln r with r = π_ref/π on the sampled tokens (Schulman 2020,
    "Approximating KL divergence", k3; TRL's `kl`). On a policy's own tokens the mean of r is 1 for any reference, so
    its mean over many ticks exceeds BEYOND with a probability of at most 1/BEYOND (Markov's inequality); −ln r stays
    far below for floats. The bound is relative to earlier estimates, because some trainers sum over a completion.

    Such tokens come from workers with other weights, a stale cache, or a tool's answer that counts as a completion. No
    rollback and no anchor helps, and the policy has to adapt to them.
    """
    ticks = LATELY if since is None else max(LATELY, window.tick - since)
    kls = window.surviving_series(KL)
    before = [value for tick, value in kls if tick <= window.tick - ticks and math.isfinite(value)]
    now = sum(value for value in window.series(KL, after=window.tick - ticks) if value > 0)  # inf counts
    return now > BEYOND * ticks * max(1.0, median(before) if before else 1.0)

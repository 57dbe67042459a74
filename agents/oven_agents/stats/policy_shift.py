"""Whether a policy itself changed or only what its judges say of it, and whether completions are another policy's."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import shift_at
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
    shift = shift_at(logs, onset)
    if len(shift.before) < LEAST or not shift.now:
        return None
    return abs(shift.of_medians) > max(DEVIATIONS * shift.noise, PLAINLY)


KL: Final = "kl"
BEYOND: Final = 200.0
"""Mean of the KL's estimate, in nats per token, above which completions are another policy's: on tokens of its own the
probability is at most 1/200 (Markov's inequality)."""
LATELY: Final = 40
"""Ticks, those that a rollback threw away among them: it is the run that is asked about, and not its weights."""


def is_off_policy(window: Window, since: int | None = None) -> bool:
    """Whether they do lately, or since tick `since` where that is longer ago.

    From the estimate of the KL to the reference model, r − 1 − ln r with r = π_ref/π on the sampled tokens (Schulman
    2020, "Approximating KL divergence", k3; TRL's `kl`). On tokens of its own a policy's mean of r is 1, whatever the
    reference, so that r's mean over many ticks lies above BEYOND with a probability of at most 1/BEYOND (Markov's
    inequality); −ln r by itself stays far below, where probabilities are floats. BEYOND times what the estimate was
    before, for some report it summed over a completion.

    An estimate that explodes is not a policy that drifts, but tokens that the policy would never have sampled: workers
    with other weights, a stale cache, a tool's answer that is counted as a completion. They come again after each
    rollback, and no anchor holds them; the policy has to get used to them.
    """
    ticks = LATELY if since is None else max(LATELY, window.tick - since)
    kls = window.surviving_series(KL)
    before = [value for tick, value in kls if tick <= window.tick - ticks and math.isfinite(value)]
    now = sum(value for value in window.series(KL, after=window.tick - ticks) if value > 0)  # inf counts
    return now > BEYOND * ticks * max(1.0, median(before) if before else 1.0)

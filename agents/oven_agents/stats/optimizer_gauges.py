"""Reads the optimizer's gauges: the length and direction of its steps, and the share of weight decay in them."""

from __future__ import annotations

import itertools
import math
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import Shift, shift_at

SCALE, ROLLBACK, DECAY = "optimizer.lr_scale", "run.rollback", "optimizer.weight_decay"
LENGTH, WEIGHTS, RATE, NORM = "optim/update_ratio", "optim/weight_norm", "learning_rate", "grad_norm"
LEVEL_TICKS = 3
"""Number of newest ticks whose median is a gauge's current level. With fewer ticks, one outlier
would set the level. With more, the level would lag."""
RECENT_TICKS = 10
"""Number of newest ticks that are not part of the reference, because a fault may have begun in them."""
REFERENCE_TICKS = 32
"""Number of ticks before RECENT_TICKS that show the usual level. At least half of them must be measured."""
MIN_NOISE = 0.01
"""Minimum standard deviation of a gauge's logarithm, so that tiny changes of a constant gauge do not count."""


def growth_of(window: Window, metric: str) -> float:
    """Return a gauge's current level divided by its usual level since the last rate change, or 1 if unknown."""
    values = [value for _, value in _values_since_rate_change(window, metric)]
    return 1.0 if len(values) < REFERENCE_TICKS // 2 else Shift(values[:-RECENT_TICKS], values[-LEVEL_TICKS:]).growth


def log_shift(window: Window, metric: str, onset: int) -> float | None:
    """Return the shift of the gauge's median logarithm at tick `onset`, in standard deviations of a single value.
    Return None if there are too few measurements since agents last changed the rate."""
    shift = shift_at([(tick, math.log(value)) for tick, value in _values_since_rate_change(window, metric)], onset)
    if len(shift.before) < REFERENCE_TICKS // 2 or not shift.now:
        return None
    return shift.median_difference / max(shift.noise, MIN_NOISE)


def _values_since_rate_change(window: Window, metric: str) -> list[tuple[int, float]]:
    points = window.surviving_series(metric, after=window.last_change_tick(SCALE), last=REFERENCE_TICKS + RECENT_TICKS)
    return [(tick, value) for tick, value in points if math.isfinite(value) and value > 0]


def shrink_share(window: Window) -> float:
    """Return the median share of the recent updates that went into shrinking the weights. It is near 1 if updates
    consist of weight decay, and about 0 if the gradient dominates or nothing was measured."""
    steps = _consecutive_steps(window, 5)
    shares = [(before - after) / (length * before) for _, before, after, length in steps if length > 0 and before > 0]
    return median(shares) if len(shares) >= LEVEL_TICKS else 0.0


def outward_cosine(window: Window, last: int = RECENT_TICKS) -> float:
    """Return the minimum cosine between the last steps and the weights. It is −1 for a step that only shrinks the
    weights or was not measured, 1 for a step that only grows them, and near 0 if the gradient dominates. It is computed
    by the law of cosines, so it exceeds 1 if the weights moved by more than the step."""
    steps = _consecutive_steps(window, last)
    cosines = [
        ((after / before) ** 2 - 1 - length**2) / (2 * length) for _, before, after, length in steps if length > 0
    ]
    return min(cosines) if len(cosines) == last else -1.0


def decay_share(window: Window) -> float:
    """Return the median share of weight decay in the recent updates: λ divided by the update ratio, with λ = rate ×
    decay. Return 0 if it is unknown. The result is too high if some weights have no decay."""
    if DECAY not in window.knobs:
        return 0.0
    decay, since = window.knobs[DECAY].number, window.last_change_tick(DECAY, ROLLBACK)
    rates, lengths = (dict(window.surviving_series(metric, after=since, last=LEVEL_TICKS)) for metric in (RATE, LENGTH))
    shares = [rates[tick] * decay / length for tick, length in lengths.items() if tick in rates and length > 0]
    return median(shares) if len(shares) == LEVEL_TICKS else 0.0


def unexplained_jump(window: Window, since: int, last: int = RECENT_TICKS) -> tuple[int, float] | None:
    """Return the newest tick at which the weights changed by more than the update, and the excess as a share of their
    norm. Return None if there is no such tick. Only the `last` ticks after `since` are searched. A norm changes by at
    most the length of the update (triangle inequality), so an excess has another cause, such as a memory fault or a
    faulty restore."""
    for tick, before, after, length in reversed(_consecutive_steps(window, last)):
        change = abs(after - before) / before
        if tick > since and change > 1.5 * length + 1e-3:
            return tick, change - length
    return None


def _consecutive_steps(window: Window, last: int) -> list[tuple[int, float, float, float]]:
    """Return (tick, weight norm before, weight norm after, relative length of the update) for consecutive steps.
    Gauges may be read before or after an update. So the length is the larger of the two readings, which bounds the
    change in both cases."""
    steps = []
    observations = list(window.observations)[-last - 1 :]
    for earlier, later in itertools.pairwise(observations):
        gauges = [o.metrics.get(name, math.nan) for o in (earlier, later) for name in (WEIGHTS, LENGTH)]
        norm_before, length_before, norm_after, length_after = gauges
        if later.step == earlier.step + 1 and all(map(math.isfinite, gauges)) and norm_before > 0:
            steps.append((later.tick, norm_before, norm_after, max(length_before, length_after)))
    return steps

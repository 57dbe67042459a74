"""Reads the optimizer's gauges: the length and direction of its steps, and the share of weight decay in them."""

from __future__ import annotations

import itertools
import math
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import Shift, shift_at

LR_SCALE, ROLLBACK, WEIGHT_DECAY = "optimizer.lr_scale", "run.rollback", "optimizer.weight_decay"
LEARNING_RATE, GRAD_NORM, GRAD_COSINE = "learning_rate", "grad_norm", "optim/grad_momentum_cos"
UPDATE_RATIO, WEIGHT_NORM = "optim/update_ratio", "optim/weight_norm"
LEVEL_TICKS = 3
"""Number of newest ticks whose median is a gauge's current level. With fewer, a single outlier would set the level."""
RECENT_TICKS = 10
"""Number of newest ticks excluded from the usual level, because a fault may have begun in them."""
REFERENCE_TICKS = 32
"""Number of ticks before RECENT_TICKS that give a gauge's usual level. At least half of them must be measured."""
MIN_NOISE = 0.01
"""Minimum standard deviation of a gauge's logarithm, so that tiny changes of a constant gauge do not count."""


def growth_of(window: Window, metric: str) -> float:
    """Return a gauge's current level divided by its usual level, or 1 if too few values are known. Only values since
    agents last changed the learning rate count."""
    values = [value for _, value in _values_since_rate_change(window, metric)]
    if len(values) < REFERENCE_TICKS // 2:
        return 1.0
    return Shift(values[:-RECENT_TICKS], values[-LEVEL_TICKS:]).growth


def log_shift(window: Window, metric: str, onset: int) -> float | None:
    """Return the shift of the gauge's median logarithm at tick `onset`, in standard deviations of a single value.
    Return None if there are too few measurements since agents last changed the learning rate."""
    shift = shift_at([(tick, math.log(value)) for tick, value in _values_since_rate_change(window, metric)], onset)
    if len(shift.before) < REFERENCE_TICKS // 2 or not shift.now:
        return None
    return shift.median_difference / max(shift.noise, MIN_NOISE)


def _values_since_rate_change(window: Window, metric: str) -> list[tuple[int, float]]:
    since = window.last_change_tick(LR_SCALE)
    points = window.surviving_series(metric, after=since, last=REFERENCE_TICKS + RECENT_TICKS)
    return [(tick, value) for tick, value in points if math.isfinite(value) and value > 0]


def shrink_share(window: Window) -> float:
    """Return the median share of the recent updates that went into shrinking the weights. The share is near 1 if
    updates consist of weight decay, and about 0 if the gradient dominates or nothing was measured."""
    steps = _consecutive_steps(window, 5)
    shares = [(before - after) / (length * before) for _, before, after, length in steps if length > 0 and before > 0]
    return median(shares) if len(shares) >= LEVEL_TICKS else 0.0


def outward_cosine(window: Window, last: int = RECENT_TICKS) -> float:
    """Return the minimum cosine between the last steps and the weights. A step that only shrinks the weights has −1, a
    step that only grows them has 1, and a step dominated by the gradient is near 0. Return −1 if a step was not
    measured. The law of cosines gives more than 1 if the weights moved by more than the step."""
    steps = _consecutive_steps(window, last)
    cosines = [
        ((after / before) ** 2 - 1 - length**2) / (2 * length) for _, before, after, length in steps if length > 0
    ]
    return min(cosines) if len(cosines) == last else -1.0


def decay_share(window: Window) -> float:
    """Return the median share of weight decay in the recent updates, or 0 if it is unknown. The share is rate × decay /
    update ratio. It is too high if some weights have no decay."""
    if WEIGHT_DECAY not in window.knobs:
        return 0.0
    decay, since = window.knobs[WEIGHT_DECAY].number, window.last_change_tick(WEIGHT_DECAY, ROLLBACK)
    rates = dict(window.surviving_series(LEARNING_RATE, after=since, last=LEVEL_TICKS))
    ratios = window.surviving_series(UPDATE_RATIO, after=since, last=LEVEL_TICKS)
    shares = [rates[tick] * decay / ratio for tick, ratio in ratios if tick in rates and ratio > 0]
    return median(shares) if len(shares) == LEVEL_TICKS else 0.0


def unexplained_jump(window: Window, since: int, last: int = RECENT_TICKS) -> tuple[int, float] | None:
    """Return the newest tick at which the weights changed by more than the update, and the excess as a share of their
    norm. Return None if there is no such tick among the `last` ticks after tick `since`. By the triangle inequality, an
    update changes the norm by at most its own length. So an excess has another cause, such as a memory fault."""
    for tick, before, after, length in reversed(_consecutive_steps(window, last)):
        change = abs(after - before) / before
        if tick > since and change > 1.5 * length + 1e-3:
            return tick, change - length
    return None


def _consecutive_steps(window: Window, last: int) -> list[tuple[int, float, float, float]]:
    """Return (tick, weight norm before, weight norm after, relative length of the update) for consecutive steps.
    Gauges may be read before or after an update. The larger of the two lengths bounds the change in both cases."""
    steps = []
    observations = list(window.observations)[-last - 1 :]
    for earlier, later in itertools.pairwise(observations):
        norm_before, norm_after = (o.metrics.get(WEIGHT_NORM, math.nan) for o in (earlier, later))
        length_before, length_after = (o.metrics.get(UPDATE_RATIO, math.nan) for o in (earlier, later))
        are_finite = all(map(math.isfinite, (norm_before, norm_after, length_before, length_after)))
        if later.step == earlier.step + 1 and are_finite and norm_before > 0:
            steps.append((later.tick, norm_before, norm_after, max(length_before, length_after)))
    return steps

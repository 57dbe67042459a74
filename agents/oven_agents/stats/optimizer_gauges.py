"""Reads the optimizer's gauges to find the length of its steps, their direction, and the cause of long steps."""

from __future__ import annotations

import itertools
import math
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import Shift, shift_at

SCALE, ROLLBACK, DECAY = "optimizer.lr_scale", "run.rollback", "optimizer.weight_decay"
LENGTH, WEIGHTS, RATE, NORM = "optim/update_ratio", "optim/weight_norm", "learning_rate", "grad_norm"
NOW = 3
"""Newest ticks whose median is a gauge's present level. One outlier would change fewer; more lag."""
LATELY = 10
"""Newest ticks that do not count as usual, because the fault may have begun in them."""
REFERENCE = 32
"""Ticks before LATELY that show what is usual; half of them must be measured."""
LEAST_NOISE = 0.01
"""Least deviation of a gauge's logarithm; otherwise a tiny change of a constant gauge would be many deviations."""


def grown(window: Window, metric: str) -> float:
    """Return the gauge's present level over its usual one since agents last moved the rate; 1 if it was hardly
    measured."""
    values = [value for _, value in _since_the_rate(window, metric)]
    return 1.0 if len(values) < REFERENCE // 2 else Shift(values[:-LATELY], values[-NOW:]).growth


def moved(window: Window, metric: str, onset: int) -> float | None:
    """Return the shift of the gauge's median logarithm at tick `onset`, in deviations of a single value; None if too
    little was measured since the agents last moved the rate."""
    shift = shift_at([(tick, math.log(value)) for tick, value in _since_the_rate(window, metric)], onset)
    if len(shift.before) < REFERENCE // 2 or not shift.now:
        return None
    return shift.of_medians / max(shift.noise, LEAST_NOISE)


def _since_the_rate(window: Window, metric: str) -> list[tuple[int, float]]:
    seen = window.surviving_series(metric, after=window.last_change_tick(SCALE), last=REFERENCE + LATELY)
    return [(tick, value) for tick, value in seen if math.isfinite(value) and value > 0]


def shrink_share(window: Window) -> float:
    """Return the share of the last steps' length that shrank the weights: near 1 if updates consist of weight decay,
    about 0 if the gradient leads or nothing was measured."""
    pairs = _pairs(window, 5)
    shares = [(before - after) / (length * before) for _, before, after, length in pairs if length > 0 and before > 0]
    return median(shares) if len(shares) >= NOW else 0.0


def outward_cosine(window: Window, last: int = LATELY) -> float:
    """Return the least cosine of the last steps with the weights: −1 for a step that only shrinks them or if it was not
    measured, 1 for a step that only grows them, near 0 if the gradient leads. Computed by the law of cosines, so it
    exceeds 1 if the weights moved by more than the step."""
    pairs = _pairs(window, last)
    cosines = [
        ((after / before) ** 2 - 1 - length**2) / (2 * length) for _, before, after, length in pairs if length > 0
    ]
    return min(cosines) if len(cosines) == last else -1.0


def decay_share(window: Window) -> float:
    """Return weight decay's own share of the last steps' length, λ‖w‖ over that of the update (λ: rate × decay); 0 if
    it is unknown. If some weights are not decayed, it is too high by as much."""
    if DECAY not in window.knobs:
        return 0.0
    decay, since = window.knobs[DECAY].number, window.last_change_tick(DECAY, ROLLBACK)
    rates, lengths = (dict(window.surviving_series(metric, after=since, last=NOW)) for metric in (RATE, LENGTH))
    shares = [rates[tick] * decay / length for tick, length in lengths.items() if tick in rates and length > 0]
    return median(shares) if len(shares) == NOW else 0.0


def unexplained_jump(window: Window, since: int, last: int = LATELY) -> tuple[int, float] | None:
    """Return the last tick after `since`, among the `last` ones, at which the weights changed by more than the update,
    and by what share of their norm; None without one. A norm changes by at most the length of the update (triangle
    inequality), so the rest has another cause: a fault of memory, or of a restore."""
    for tick, before, after, length in reversed(_pairs(window, last)):
        change = abs(after - before) / before
        if tick > since and change > 1.5 * length + 1e-3:
            return tick, change - length
    return None


def _pairs(window: Window, last: int) -> list[tuple[int, float, float, float]]:
    """Return (tick, norm a step before, norm, length of the longer of the two updates over the norm) for consecutive
    steps. The change lies within the longer update whether a gauge reads before or after it."""
    pairs = []
    observations = list(window.observations)[-last - 1 :]
    for earlier, later in itertools.pairwise(observations):
        values = [o.metrics.get(name, math.nan) for o in (earlier, later) for name in (WEIGHTS, LENGTH)]
        if later.step == earlier.step + 1 and all(math.isfinite(v) for v in values) and values[0] > 0:
            pairs.append((later.tick, values[0], values[2], max(values[1], values[3])))
    return pairs

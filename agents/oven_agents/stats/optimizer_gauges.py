"""What the optimizer's own gauges say of its steps: how long they are, who made them so, and where they lead."""

from __future__ import annotations

import itertools
import math
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import Shift, shift_at

SCALE, ROLLBACK, DECAY = "optimizer.lr_scale", "run.rollback", "optimizer.weight_decay"
LENGTH, WEIGHTS, RATE, NORM = "optim/update_ratio", "optim/weight_norm", "learning_rate", "grad_norm"
NOW = 3
"""Newest ticks that say how a gauge is now, in the median; one odd step turns fewer, more see it later."""
LATELY = 10
"""Newest ticks that are not part of what is usual, since what is looked for may have begun in them."""
REFERENCE = 32
"""Ticks before LATELY that say what is usual; half of them have to be measured."""
LEAST_NOISE = 0.01
"""Least deviation of a gauge's logarithm: one that hardly varies would move by many deviations at nothing."""


def grown(window: Window, metric: str) -> float:
    """By what factor the gauge's last three values exceed those on the way here, in the median; 1 where too little was
    measured, or since the agents themselves moved the rate."""
    values = [value for _, value in _since_the_rate(window, metric)]
    return 1.0 if len(values) < REFERENCE // 2 else Shift(values[:-LATELY], values[-NOW:]).growth


def moved(window: Window, metric: str, onset: int) -> float | None:
    """By how much the gauge's values from tick `onset` on (in the median, of logarithms) differ from those before, in
    deviations of a single one; None where too little was measured since the agents themselves moved the rate."""
    shift = shift_at([(tick, math.log(value)) for tick, value in _since_the_rate(window, metric)], onset)
    if len(shift.before) < REFERENCE // 2 or not shift.now:
        return None
    return shift.of_medians / max(shift.noise, LEAST_NOISE)


def _since_the_rate(window: Window, metric: str) -> list[tuple[int, float]]:
    """(tick, value) of a gauge that is above 0, since the rate was last changed."""
    seen = window.surviving_series(metric, after=window.last_change_tick(SCALE), last=REFERENCE + LATELY)
    return [(tick, value) for tick, value in seen if math.isfinite(value) and value > 0]


def shrink_share(window: Window) -> float:
    """Share of the last steps' length that went into making the weights smaller: near 1 where weight decay is nearly
    all that an update consists of, about 0 where the gradient leads. 0 where it is not measured."""
    pairs = _pairs(window, 5)
    shares = [(before - after) / (length * before) for _, before, after, length in pairs if length > 0 and before > 0]
    return median(shares) if len(shares) >= NOW else 0.0


def outward_cosine(window: Window, last: int = LATELY) -> float:
    """Least cosine of the last steps with the weights that they were added to: −1 where a step does nothing but shrink
    them, 1 where it does nothing but make them larger, near 0 where the gradient leads. By the law of cosines, from
    both norms and the length of the step; above 1 where the weights moved by more than that. −1 where it is not
    measured."""
    pairs = _pairs(window, last)
    cosines = [
        ((after / before) ** 2 - 1 - length**2) / (2 * length) for _, before, after, length in pairs if length > 0
    ]
    return min(cosines) if len(cosines) == last else -1.0


def decay_share(window: Window) -> float:
    """Share that weight decay by itself has in the last steps' length, λ‖w‖ over that of the update (λ: rate × decay),
    as the decay is announced or was set; 0 where it is not known. Of all weights: where some are not decayed it is that
    much too high, and those that are may still shrink without a sign in their common norm."""
    if DECAY not in window.knobs:
        return 0.0
    decay, since = window.knobs[DECAY].number, window.last_change_tick(DECAY, ROLLBACK)
    rates, lengths = (dict(window.surviving_series(metric, after=since, last=NOW)) for metric in (RATE, LENGTH))
    shares = [rates[tick] * decay / length for tick, length in lengths.items() if tick in rates and length > 0]
    return median(shares) if len(shares) == NOW else 0.0


def unexplained_jump(window: Window, since: int, last: int = LATELY) -> tuple[int, float] | None:
    """The last tick after `since` before which the weights changed by more than updates account for, and by how much of
    their norm; None where none of the `last` ones is such a tick, or it is not measured. A norm changes by at most the
    length of the update (triangle inequality), so that what is left over was done by something else: a fault of memory,
    or of a restore."""
    for tick, before, after, length in reversed(_pairs(window, last)):
        change = abs(after - before) / before
        if tick > since and change > 1.5 * length + 1e-3:
            return tick, change - length
    return None


def _pairs(window: Window, last: int) -> list[tuple[int, float, float, float]]:
    """(tick, norm a step before, norm, length of the longer of the two updates over the norm) of the last steps that
    follow one another. Whether a gauge reads before or after the update, the change lies within the longer."""
    pairs = []
    observations = list(window.observations)[-last - 1 :]
    for earlier, later in itertools.pairwise(observations):
        values = [o.metrics.get(name, math.nan) for o in (earlier, later) for name in (WEIGHTS, LENGTH)]
        if later.step == earlier.step + 1 and all(math.isfinite(v) for v in values) and values[0] > 0:
            pairs.append((later.tick, values[0], values[2], max(values[1], values[3])))
    return pairs

"""Compares the length of the optimizer's steps with the norm of the weights.

TUNED_LENGTH was measured on two models. On other models, the right length may be several times longer or shorter. So
TUNED_LENGTH only limits increases of the learning rate. Long steps alone are never a reason to lower the rate: the loss
has to confirm that they do harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.sdk.window import Window
from oven_agents.stats import optimizer_gauges as gauges

TUNED_LENGTH = 0.013
"""Length of a step just after warm-up at a tuned rate, as a share of the weights' norm (docs/experiments.md)."""
MAX_LENGTH = 2 * TUNED_LENGTH
"""Length above which a step is too long. A lower threshold would flag rates that are right for other models."""
RATE_EXPONENT = 4 / 3
"""Exponent that converts a factor on the step length into a factor on the learning rate. It exceeds 1 because Adam's
steps grow more slowly than the rate: at a higher rate, successive gradients agree less."""
MIN_STREAK = 3
"""Minimum number of consecutive overlong steps. A single one may be due to its batch."""
SAME_RATE_RATIO = 1.3
"""Maximum ratio of two rates that count as the same, to allow for a slow schedule."""
MIN_EARLIER_STEPS = 5
"""Minimum number of earlier steps at the same rate for a comparison."""
DAMAGED_GROWTH = 2.0
"""Growth over earlier steps at the same rate at which damage is the likely cause (lost moments, or a faulty update)."""
MAX_WEIGHT_GROWTH = 4
"""Maximum expected growth of the weights. Steps below MAX_LENGTH / MAX_WEIGHT_GROWTH are not checked."""
HUGE_LENGTH = 0.4
"""Mean length of HUGE_STREAK steps in a row above which the learning rate is probably far too high, even in a warm-up.
Together, three such steps are longer than the weights. The highest mean in our tuned runs was 0.33
(docs/experiments.md). Weights that start near 0 exceed it at any rate."""
HUGE_STREAK = 3
"""Number of consecutive steps for HUGE_LENGTH. A single one may be due to its batch, and more would miss weights that
grow within five steps until the steps are short again."""
WARMUP_GROWTH = 1.005
"""Growth of the rate per tick above which warm-up is still in progress."""


@dataclass(frozen=True, slots=True)
class OverlongSteps:
    """A streak of steps that are too long."""

    onset: int
    """First tick of the streak of steps above MAX_LENGTH."""
    length: float
    """Relative length of the longest step in the streak."""

    @property
    def excess(self) -> float:
        """Factor by which the rate is too high."""
        return math.pow(self.length / TUNED_LENGTH, RATE_EXPONENT)


def overlong_steps(window: Window) -> OverlongSteps | None:
    """Return the newest streak of overlong steps since the last rate change, or None. The result is also None during
    warm-up, when the final rate is unknown, and if steps at this rate used to be shorter (DAMAGED_GROWTH)."""
    max_length = max(window.series(gauges.UPDATE_RATIO, last=gauges.RECENT_TICKS), default=0.0)
    if max_length <= MAX_LENGTH / MAX_WEIGHT_GROWTH or _is_warming_up(window):
        return None  # a fast path for most ticks
    lengths = _relative_lengths(window)
    streak: list[tuple[int, float]] = []
    for tick, length in reversed(lengths):
        if length > MAX_LENGTH:
            streak.append((tick, length))
        elif len(streak) >= MIN_STREAK or tick <= window.tick - gauges.RECENT_TICKS:
            break
        else:
            streak.clear()
    if len(streak) < MIN_STREAK:
        return None
    steps = OverlongSteps(streak[-1][0], max(length for _, length in streak))
    return None if _exceeds_earlier_steps(window, steps) else steps


def huge_steps(window: Window) -> tuple[int, float] | None:
    """Return the tick and the mean length of the newest HUGE_STREAK steps whose mean exceeds HUGE_LENGTH, or None. Such
    steps soon look short, because the weights grow. So they count until the rate is halved or changed by a decision."""
    since = window.last_change_tick(gauges.LR_SCALE, gauges.ROLLBACK)
    if max(window.series(gauges.UPDATE_RATIO, after=since), default=0.0) <= HUGE_LENGTH:
        return None  # a fast path for most ticks
    ratios = window.surviving_series(gauges.UPDATE_RATIO, after=since)
    lengths = [(tick, ratio) for tick, ratio in ratios if math.isfinite(ratio)]
    for end in range(len(lengths), HUGE_STREAK - 1, -1):
        tick, mean = lengths[end - 1][0], fmean(length for _, length in lengths[end - HUGE_STREAK : end])
        if mean > HUGE_LENGTH:
            rates = window.series(gauges.LEARNING_RATE, after=tick - 1)
            return (tick, mean) if not rates or 2 * rates[-1] >= rates[0] else None
    return None


def _exceeds_earlier_steps(window: Window, steps: OverlongSteps) -> bool:
    """Return whether the longest step exceeds DAMAGED_GROWTH times the median of earlier steps at the same rate."""
    since = window.last_change_tick(gauges.LR_SCALE)
    rates = dict(window.surviving_series(gauges.LEARNING_RATE, after=since))
    newest_rate = next(reversed(rates.values()), math.inf)
    min_rate, max_rate = newest_rate / SAME_RATE_RATIO, newest_rate * SAME_RATE_RATIO
    before = [
        length
        for tick, length in window.surviving_series(gauges.UPDATE_RATIO, after=since)
        if tick < steps.onset and min_rate < rates.get(tick, 0.0) < max_rate
    ]
    return len(before) >= MIN_EARLIER_STEPS and median(before) * DAMAGED_GROWTH < steps.length


def max_rate_factor(window: Window) -> float:
    """Return the factor by which the rate may grow until steps reach TUNED_LENGTH, or infinity if their length is not
    measured. The factor assumes that lengths are proportional to the rate. The next check corrects the error."""
    lengths = [length for _, length in _relative_lengths(window)[-MIN_STREAK:]]
    return TUNED_LENGTH / max(lengths) if lengths and max(lengths) > 0 else math.inf


def _relative_lengths(window: Window) -> list[tuple[int, float]]:
    """Return (tick, step length divided by the weights' norm at the last rate change). The current norm would hide long
    steps, because a rate that is too high makes the weights grow. If no norm is measured, the gauge, which is relative
    to the current norm, is returned unchanged."""
    since = window.last_change_tick(gauges.LR_SCALE, gauges.ROLLBACK)
    norms = dict(window.surviving_series(gauges.WEIGHT_NORM, after=since))
    first_norm = next((norm for norm in norms.values() if norm > 0 and math.isfinite(norm)), 1.0)
    ratios = window.surviving_series(gauges.UPDATE_RATIO, after=since)
    lengths = [(tick, ratio * norms.get(tick, first_norm) / first_norm) for tick, ratio in ratios]
    return [(tick, length) for tick, length in lengths if math.isfinite(length)]


def _is_warming_up(window: Window) -> bool:
    rates = window.series(gauges.LEARNING_RATE, last=MIN_STREAK)
    return len(rates) > 1 and rates[-1] > rates[0] * WARMUP_GROWTH ** (len(rates) - 1)

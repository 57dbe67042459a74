"""Compares the length of the optimizer's steps with the norm of the weights.

TUNED_LENGTH was measured on two of our models. Other models may need steps that are several times as long or as short.
So this length only limits increases of the learning rate, and long steps lower the rate only if the loss confirms it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.optimizer_gauges import LENGTH, RATE, RECENT_TICKS, ROLLBACK, SCALE, WEIGHTS

TUNED_LENGTH = 0.013
"""Relative step length just after warm-up at a tuned learning rate, for both models (docs/experiments.md). Eighty steps
of this length in one direction are as long as the weights."""
MAX_LENGTH = 2 * TUNED_LENGTH
"""Relative length above which a step is too long. The rate is then 2.5 times too high (EXPONENT). A lower threshold
would more often flag rates that are right for another model."""
EXPONENT = 4 / 3
"""Exponent that converts a factor on the step length into a factor on the learning rate. On the two models, 3 times the
rate made steps 2.2 times as long, 10 times the rate 4.7 and 5.5 times, and 30 times the rate 11 and 14 times. Adam's
steps grow more slowly than the rate because successive gradients agree less."""
MIN_STREAK = 3
"""Minimum number of consecutive steps that are too long. A single one may be due to its batch."""
SAME_RATE_RATIO = 1.3
"""Maximum ratio of two rates that count as the same, so that a slow schedule does not separate them."""
MIN_EARLIER_STEPS = 5
"""Minimum number of earlier steps at the same rate for a comparison."""
DAMAGED_GROWTH = 2.0
"""Growth over earlier steps at the same rate that points to lost moments or a damaged update."""
MAX_WEIGHT_GROWTH = 4
"""Maximum expected growth of the weights. Steps below MAX_LENGTH / MAX_WEIGHT_GROWTH are not checked."""
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
        return math.pow(self.length / TUNED_LENGTH, EXPONENT)


def overlong_steps(window: Window) -> OverlongSteps | None:
    """Return the newest streak of overlong steps since the last rate change. Return None during warm-up (the final
    rate is unknown), if the length is not measured, or if steps at this rate used to be half as long or less."""
    max_length = max(window.series(LENGTH, last=RECENT_TICKS), default=0.0)
    if max_length <= MAX_LENGTH / MAX_WEIGHT_GROWTH or _is_warming_up(window):
        return None  # a fast path for most ticks
    lengths = _lengths(window)
    streak: list[tuple[int, float]] = []
    for tick, length in reversed(lengths):
        if length > MAX_LENGTH:
            streak.append((tick, length))
        elif len(streak) >= MIN_STREAK or tick <= window.tick - RECENT_TICKS:
            break
        else:
            streak.clear()
    if len(streak) < MIN_STREAK:
        return None
    steps = OverlongSteps(streak[-1][0], max(length for _, length in streak))
    return None if _exceeds_earlier_steps(window, steps) else steps


def _exceeds_earlier_steps(window: Window, steps: OverlongSteps) -> bool:
    """Return whether the longest step exceeds DAMAGED_GROWTH times the median of earlier steps at the same rate."""
    since = window.last_change_tick(SCALE)
    rates, lengths = (dict(window.surviving_series(metric, after=since)) for metric in (RATE, LENGTH))
    newest = next(reversed(rates.values()), math.inf)
    before = [
        length
        for tick, length in lengths.items()
        if tick < steps.onset and newest / SAME_RATE_RATIO < rates.get(tick, 0.0) < newest * SAME_RATE_RATIO
    ]
    return len(before) >= MIN_EARLIER_STEPS and median(before) * DAMAGED_GROWTH < steps.length


def max_rate_factor(window: Window) -> float:
    """Return the factor on the rate at which steps would reach TUNED_LENGTH, or infinity if their length is not
    measured. It assumes proportionality instead of EXPONENT, because the next check corrects the rest."""
    lengths = [length for _, length in _lengths(window)[-MIN_STREAK:]]
    return TUNED_LENGTH / max(lengths) if lengths and max(lengths) > 0 else math.inf


def _lengths(window: Window) -> list[tuple[int, float]]:
    """Return (tick, step length divided by the weights' norm at the last rate change). The current norm would hide long
    steps, because a rate that is too high makes the weights grow. It is used only if the norm is not measured."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    norms = dict(window.surviving_series(WEIGHTS, after=since))
    first = next((norm for norm in norms.values() if norm > 0 and math.isfinite(norm)), 1.0)
    ratios = window.surviving_series(LENGTH, after=since)
    lengths = [(tick, ratio * norms.get(tick, first) / first) for tick, ratio in ratios]
    return [(tick, length) for tick, length in lengths if math.isfinite(length)]


def _is_warming_up(window: Window) -> bool:
    rates = window.series(RATE, last=MIN_STREAK)
    return len(rates) > 1 and rates[-1] > rates[0] * WARMUP_GROWTH ** (len(rates) - 1)

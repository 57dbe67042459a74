"""Compares the length of the optimizer's steps with the norm of the weights. FITTING was measured on two of our models
and differs by several times between models. So it only limits increases of the learning rate, and long steps lower the
rate only if the loss agrees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.optimizer_gauges import LATELY, LENGTH, RATE, ROLLBACK, SCALE, WEIGHTS

FITTING = 0.013
"""Relative step length just after warm-up at a tuned learning rate, for both models (docs/experiments.md). Eighty such
steps in one direction are as long as the weights."""
LONGEST = 2 * FITTING
"""Relative length above which a step is too long. The rate is then 2.5 times too high (EXPONENT). A lower threshold
would more often flag rates that suit another model."""
EXPONENT = 4 / 3
"""Exponent that converts the relative step length into the learning rate. 3 times the rate made steps 2.2 times as
long, 10 times 4.7 and 5.5, 30 times 11 and 14 (two models). Successive gradients agree less and Adam's steps shrink."""
IN_A_ROW = 3
"""Minimum consecutive steps that are too long. A single one may be due to its batch."""
SAME = 1.3
"""Maximum ratio of two rates that count as the same, so that a slow schedule does not separate them."""
ENOUGH = 5
"""Minimum earlier steps at the same rate for a comparison."""
TWICE = 2.0
"""Growth over earlier steps at the same rate that points to lost moments or a damaged update."""
GROWN = 4
"""Largest expected growth of the weights since the last rate change. Steps below LONGEST / GROWN are not checked."""
RISING = 1.005
"""Growth of the rate per tick above which warm-up is still in progress."""


@dataclass(frozen=True, slots=True)
class Overlong:
    onset: int
    """First tick of the streak of steps above LONGEST."""
    length: float
    """Relative length of the longest step in the streak."""

    @property
    def excess(self) -> float:
        """The factor by which the rate is too high."""
        return math.pow(self.length / FITTING, EXPONENT)


def overlong(window: Window) -> Overlong | None:
    """Return the newest streak of overlong steps since the last rate change. Return None during warm-up (the final
    rate is unknown), if the length is not measured, or if steps at this rate used to be half as long or less."""
    if _warming(window) or max(window.series(LENGTH, last=LATELY), default=0.0) <= LONGEST / GROWN:
        return None  # most ticks end here
    lengths = _lengths(window)
    streak: list[tuple[int, float]] = []
    for tick, length in reversed(lengths):
        if length > LONGEST:
            streak.append((tick, length))
        elif len(streak) >= IN_A_ROW or tick <= window.tick - LATELY:
            break
        else:
            streak.clear()
    if len(streak) < IN_A_ROW:
        return None
    overlong = Overlong(streak[-1][0], max(length for _, length in streak))
    return None if _fitted(window, overlong) else overlong


def _fitted(window: Window, now: Overlong) -> bool:
    """Return whether the longest step is more than TWICE the median of earlier steps at the same rate."""
    since = window.last_change_tick(SCALE)
    rates, lengths = (dict(window.surviving_series(metric, after=since)) for metric in (RATE, LENGTH))
    newest = next(reversed(rates.values()), math.inf)
    before = [
        length
        for tick, length in lengths.items()
        if tick < now.onset and newest / SAME < rates.get(tick, 0.0) < newest * SAME
    ]
    return len(before) >= ENOUGH and median(before) * TWICE < now.length


def room(window: Window) -> float:
    """Return the factor that raises the rate until steps reach FITTING, or infinity if their length is not measured.
    The factor is proportional and ignores EXPONENT, because the next check corrects the rest."""
    lengths = [length for _, length in _lengths(window)[-IN_A_ROW:]]
    return FITTING / max(lengths) if lengths and max(lengths) > 0 else math.inf


def _lengths(window: Window) -> list[tuple[int, float]]:
    """Return (tick, step length divided by the weights' norm at the last rate change). The current norm would hide long
    steps, because a rate that is too high makes the weights grow. It is used only if the norm is not measured."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    norms = dict(window.surviving_series(WEIGHTS, after=since))
    first = next((norm for norm in norms.values() if norm > 0 and math.isfinite(norm)), 1.0)
    lengths = window.surviving_series(LENGTH, after=since)
    seen = [(tick, length * norms.get(tick, first) / first) for tick, length in lengths]
    return [(tick, length) for tick, length in seen if math.isfinite(length)]


def _warming(window: Window) -> bool:
    rates = window.series(RATE, last=IN_A_ROW)
    return len(rates) > 1 and rates[-1] > rates[0] * RISING ** (len(rates) - 1)

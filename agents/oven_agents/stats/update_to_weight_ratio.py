"""The length of the optimizer's steps relative to the weights. FITTING was measured on two of our models and differs
between models by several times. So it only bounds how far a rate is raised, and long steps only lower a rate if the
loss agrees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.optimizer_gauges import LATELY, LENGTH, RATE, ROLLBACK, SCALE, WEIGHTS

FITTING = 0.013
"""Relative length of a step just after warm-up at tuned rates, of both models (docs/experiments.md): eighty such steps
in one direction are as long as the weights."""
LONGEST = 2 * FITTING
"""Relative length above which a step is too long: a rate 2.5 times too high (EXPONENT). A lower bound would more often
hit rates that fit another model."""
EXPONENT = 4 / 3
"""Exponent of the length in the rate: three times the rate made steps 2.2 times as long, ten times 4.7 and 5.5, thirty
times 11 and 14 (the two models). At a higher rate successive gradients agree less, and Adam's steps shrink."""
IN_A_ROW = 3
"""Steps in a row that must be too long; a single one may be due to its batch."""
SAME = 1.3
"""Factor within which two rates count as the same, so that a slow schedule does not separate them."""
ENOUGH = 5
"""Fewest earlier steps at the same rate to compare with."""
TWICE = 2.0
"""Growth over earlier steps at the same rate from which the cause is lost moments or a damaged update."""
GROWN = 4
"""Factor by which weights may have grown since the rate was changed; steps below LONGEST / GROWN are not checked."""
RISING = 1.005
"""Growth of the rate per tick above which it is still in warm-up."""


@dataclass(frozen=True, slots=True)
class Overlong:
    onset: int
    """The first tick of a row of steps above LONGEST."""
    length: float
    """The longest of them."""

    @property
    def excess(self) -> float:
        """The factor by which the rate is too high."""
        return math.pow(self.length / FITTING, EXPONENT)


def overlong(window: Window) -> Overlong | None:
    """Return the newest row of steps that are too long since the rate was last changed. None during warm-up, when the
    final rate is unknown; if the length is not measured; and if steps at this rate were half as long before."""
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
    """Return whether earlier steps at the same rate were TWICE as short."""
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
    """Return the factor by which the rate may be raised until steps are FITTING; infinite if their length is not
    measured. In proportion and not with EXPONENT, because the next check corrects the rest."""
    lengths = [length for _, length in _lengths(window)[-IN_A_ROW:]]
    return FITTING / max(lengths) if lengths and max(lengths) > 0 else math.inf


def _lengths(window: Window) -> list[tuple[int, float]]:
    """Return (tick, length over the weights' norm when the rate was last changed). A rate that is too high makes the
    weights grow, which hides the length relative to the present norm; that is used if their norm is not measured."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    norms = dict(window.surviving_series(WEIGHTS, after=since))
    first = next((norm for norm in norms.values() if norm > 0 and math.isfinite(norm)), 1.0)
    lengths = window.surviving_series(LENGTH, after=since)
    seen = [(tick, length * norms.get(tick, first) / first) for tick, length in lengths]
    return [(tick, length) for tick, length in seen if math.isfinite(length)]


def _warming(window: Window) -> bool:
    rates = window.series(RATE, last=IN_A_ROW)
    return len(rates) > 1 and rates[-1] > rates[0] * RISING ** (len(rates) - 1)

"""How long the optimizer's steps are, measured by the weights. FITTING was measured on two models of our own, and what
fits another differs by several times: it bounds how far a rate is raised, and long steps are a reason to lower one only
where the loss agrees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from oven_agents.sdk.window import Window
from oven_agents.stats.optimizer_gauges import LATELY, LENGTH, RATE, ROLLBACK, SCALE, WEIGHTS

FITTING = 0.013
"""Relative length of a step just after warm-up at the rates that were tuned by trial, of both models that were tried
(docs/experiments.md): some eighty such steps in one direction are as long as the weights."""
LONGEST = 2 * FITTING
"""Relative length of a step above which it is too long; twice as long means a rate 2.5 times as high (EXPONENT). A
lower one would more often meet rates that fit another model."""
EXPONENT = 4 / 3
"""Of the rate in the length, inverted: three times the rate made steps 2.2 times as long, ten times 4.7 and 5.5, thirty
times 11 and 14 (the two models). Under a higher rate successive gradients agree less, and Adam's steps shrink."""
IN_A_ROW = 3
"""Steps in a row that have to be too long; a single one may be its batch's."""
SAME = 1.3
"""Factor within which two rates count as about the same, so that a slow schedule does not part them."""
ENOUGH = 5
"""Steps at about the same rate that have to be measured before the ones that are too long."""
TWICE = 2.0
"""How many times as long as earlier steps at that rate the longest has to be for another cause than the rate: lost
moments, a damaged update."""
GROWN = 4
"""By what factor weights may have grown since the rate was changed for a short step to be looked at closely."""
RISING = 1.005
"""A tick: a rate that grows faster is still being warmed up."""


@dataclass(frozen=True, slots=True)
class Overlong:
    onset: int
    """The first tick of those in a row whose step was longer than LONGEST."""
    length: float
    """Of the longest of them."""

    @property
    def excess(self) -> float:
        """By what factor the rate is too high."""
        return math.pow(self.length / FITTING, EXPONENT)


def overlong(window: Window) -> Overlong | None:
    """Of the last steps since the rate was last changed. None while it is warmed up: how high it will get is not known
    then, and to be undone later costs a few steps more. None where the length is not measured, and where steps at this
    rate were half as long before: what made them longer then is not the rate (lost moments, a damaged update)."""
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
    """Whether steps under about the same rate were TWICE as short on the way to those that are too long."""
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
    """By what factor the rate may be raised until steps are FITTING; without limit where their length is not measured.
    In proportion, not with EXPONENT: what is left out is made up for by the next look."""
    lengths = [length for _, length in _lengths(window)[-IN_A_ROW:]]
    return FITTING / max(lengths) if lengths and max(lengths) > 0 else math.inf


def _lengths(window: Window) -> list[tuple[int, float]]:
    """(tick, length over the norm of the weights as they were when the rate was last changed) on the way to the present
    weights. Under a rate that is too high the weights grow, and what is relative to them hides by how much it is; where
    their norm is not measured it has to do."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    norms = dict(window.surviving_series(WEIGHTS, after=since))
    first = next((norm for norm in norms.values() if norm > 0 and math.isfinite(norm)), 1.0)
    lengths = window.surviving_series(LENGTH, after=since)
    seen = [(tick, length * norms.get(tick, first) / first) for tick, length in lengths]
    return [(tick, length) for tick, length in seen if math.isfinite(length)]


def _warming(window: Window) -> bool:
    rates = window.series(RATE, last=IN_A_ROW)
    return len(rates) > 1 and rates[-1] > rates[0] * RISING ** (len(rates) - 1)

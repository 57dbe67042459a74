"""What a comparison says: a figure, the 95 % interval around it, and the word for a difference. And quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles, stdev
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

T = TypeVar("T")
DRAWS = 2000
"""Resamples of a bootstrap."""
LEVEL = 0.95

Word = Literal["HELPS", "NO EFFECT", "HARMS", "INCONCLUSIVE"]


def word(low: float, high: float, smallest: float) -> Word:
    """The word for a difference, of which more is better, from the ends of its 95 % interval and the smallest effect of
    interest: no smaller difference, up or down, would matter to anybody, and the one who asks states it beforehand.

    HELPS and HARMS: the interval does not hold 0. NO EFFECT: it holds 0, and no effect of interest. INCONCLUSIVE: it
    is wide, that is, it holds both. That a difference was not found is not evidence that there is none.
    """
    if low > 0:
        return "HELPS"
    if high < 0:
        return "HARMS"
    return "NO EFFECT" if -smallest < low and high < smallest else "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the ends that it lies between with 95 % confidence."""

    mean: float
    low: float
    high: float


def paired(one: Sequence[float], other: Sequence[float]) -> Interval:
    """Mean of `one` minus `other`, pair by pair, by Student's t: the differences have to be about normal. Raises
    ValueError below two pairs: one difference says nothing of its spread."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(differences) < 2:
        raise ValueError(f"{len(differences)} pairs have no interval; give at least 2 seeds")
    mean = fmean(differences)
    half = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Interval(mean, mean - half, mean + half)


def share(hits: int, count: int) -> Interval:
    """Of so many, the share that was hit, with Wilson's interval (Wilson 1927)."""
    ends = stats.binomtest(hits, count).proportion_ci(LEVEL, method="wilson")
    return Interval(hits / count, float(ends.low), float(ends.high))


def t_quantile(freedom: int) -> float:
    """Student's t at .975."""
    return float(stats.t.ppf(0.975, freedom))


def bootstrapped(sample: Sequence[T], figure: Callable[[Sequence[T]], float], draws: int = DRAWS) -> Interval:
    """Of a figure of a whole sample of two values or more (a ratio, a median): percentile bootstrap (Efron & Tibshirani
    1993)."""
    chosen = ((range(len(sample)),), lambda places: figure([sample[place] for place in places]))
    found = stats.bootstrap(*chosen, n_resamples=draws, vectorized=False, method="percentile", rng=_chance())
    return Interval(figure(sample), float(found.confidence_interval.low), float(found.confidence_interval.high))


def resampled(size: int, seed: int = 0) -> NDArray[np.int64]:
    """DRAWS samples of `size` indices with replacement, [draws, size]: the same for all that is compared."""
    return np.random.Generator(np.random.PCG64(seed)).integers(0, size, size=(DRAWS, size))


def bootstrapped_mean(values: Sequence[float]) -> Interval:
    """Percentile bootstrap (Efron 1979). Of one value it is a point, which is not certainty: look at the count."""
    if len(values) == 1:
        return Interval(values[0], values[0], values[0])
    found = stats.bootstrap((values,), np.mean, n_resamples=DRAWS, method="percentile", rng=_chance())
    return Interval(fmean(values), float(found.confidence_interval.low), float(found.confidence_interval.high))


def _chance() -> np.random.Generator:
    """The same draws at each call."""
    return np.random.default_rng(0)


def percentile_ends(draws: NDArray[np.float64]) -> tuple[float, float]:
    """The ends of the interval, of a figure's resamples."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def percentile(values: Sequence[float], percent: int) -> float:
    """Between the two values that lie beside it (Hyndman & Fan 1996, type 7). NaN below two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else math.nan


def seen_quantile(values: Sequence[float], share: float) -> float:
    """By nearest rank (Hyndman & Fan 1996, type 1): a value that was seen, rounded to hundredths."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

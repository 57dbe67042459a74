"""95 % confidence intervals, and the word for a difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles, stdev
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

T = TypeVar("T")
RESAMPLES = 2000
"""Resamples of a bootstrap."""

Word = Literal["HELPS", "NO EFFECT", "HARMS", "INCONCLUSIVE"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def word(self, smallest: float) -> Word:
        """The word for a difference of which more is better. No difference below `smallest`, up or down, would matter.

        HELPS and HARMS: the interval excludes 0. NO EFFECT: it contains 0 and no difference that matters.
        INCONCLUSIVE: it contains both. A difference that was not found may still exist.
        """
        if self.low > 0:
            return "HELPS"
        if self.high < 0:
            return "HARMS"
        return "NO EFFECT" if -smallest < self.low and self.high < smallest else "INCONCLUSIVE"

    def fields(self, name: str, digits: int = 4) -> dict[str, float]:
        """`name`, `name_low` and `name_high`, rounded, for a report."""
        figures = {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}
        return {key: round(value, digits) for key, value in figures.items()}


def paired(values: Sequence[float], baseline: Sequence[float]) -> Interval:
    """The mean of `values` minus `baseline`, pair by pair, by Student's t: the differences have to be about normal.
    Raises ValueError below two pairs."""
    differences = [value - theirs for value, theirs in zip(values, baseline, strict=True)]
    if len(differences) < 2:
        raise ValueError(f"{len(differences)} pairs have no interval; give at least 2 seeds")
    mean = fmean(differences)
    half = t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Interval(mean, mean - half, mean + half)


def t_quantile(degrees_of_freedom: int) -> float:
    """Student's t at 0.975."""
    return float(stats.t.ppf(0.975, degrees_of_freedom))


def bootstrapped(sample: Sequence[T], figure: Callable[[Sequence[T]], float], draws: int = RESAMPLES) -> Interval:
    """The figure of a whole sample of at least two values (a ratio, a median), by percentile bootstrap (Efron &
    Tibshirani 1993)."""
    indices = (range(len(sample)),)

    def resampled_figure(chosen: Sequence[int]) -> float:
        return figure([sample[index] for index in chosen])

    result = stats.bootstrap(
        indices, resampled_figure, n_resamples=draws, vectorized=False, method="percentile",
        rng=np.random.default_rng(0),
    )  # fmt: skip
    return Interval(figure(sample), float(result.confidence_interval.low), float(result.confidence_interval.high))


def bootstrapped_mean(values: Sequence[float]) -> Interval:
    """The mean by percentile bootstrap (Efron 1979). For one value it is a point, which is not certainty."""
    if len(values) == 1:
        return Interval(values[0], values[0], values[0])
    result = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return Interval(fmean(values), float(result.confidence_interval.low), float(result.confidence_interval.high))


def difference_to_best(values: Sequence[float], baselines: Mapping[str, Sequence[float]]) -> tuple[str, Interval]:
    """The best baseline, and the difference to it, resampled in pairs. All samples have the same length and order.

    Each resample picks its best baseline anew, as the whole sample did. So the luck of having been picked favours the
    baselines and never the values.
    """
    draws = np.random.Generator(np.random.PCG64(0)).integers(0, len(values), size=(RESAMPLES, len(values)))
    mine = np.array(values)
    names = sorted(baselines)
    theirs = np.array([baselines[name] for name in names])  # [baselines, values]
    means = theirs.mean(axis=1)
    best = int(means.argmax())
    differences: NDArray[np.float64] = mine[draws].mean(axis=1) - theirs[:, draws].mean(axis=2).max(axis=0)  # [draws]
    low, high = np.percentile(differences, [2.5, 97.5])
    return names[best], Interval(float(mine.mean() - means[best]), float(low), float(high))


def ratio_of_blocks(
    ours: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], draws: int = 10_000
) -> Interval:
    """The mean of `ours` over that of `baseline`, resampled over pairs of neighbouring blocks, because the values of
    one block are not independent."""
    sums = [(sum(mine), sum(theirs)) for mine, theirs in zip(ours, baseline, strict=True)]

    def ratio(pairs: Sequence[tuple[float, float]]) -> float:
        return sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs)

    return bootstrapped(sums, ratio, draws)


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile, interpolated between neighbours (Hyndman & Fan 1996, type 7). NaN below two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else math.nan


def observed_quantile(values: Sequence[float], share: float) -> float:
    """A quantile by nearest rank (Hyndman & Fan 1996, type 1): one of the values, rounded to hundredths."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

"""Calibration of stated confidences: Brier score, expected and maximum calibration error, and what chance makes of it.

Outcomes are 0, 1 or anything between: the degree to which an answer turned out right. torchmetrics and scikit-learn
take only 0 and 1, and agree on those (tests/unit/learner/test_calibration_error.py).

A perfect forecaster has an error, too. Its expected value (the *null*) falls with the number of answers and with their
spread: of 250 answers in 10 bins it is .06 where confidences are spread, and .02 where all are alike. An error means
something only beside it (Bröcker & Smith 2007, "Increasing the reliability of reliability diagrams").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BINS = 10
"""Of equal width, [low, high); the last has 1 as well."""
DRAWS = 1000
"""Of the null: its 99 % point rests on ten."""
SEED = 20260101
"""Of the draws, so that equal confidences have an equal null."""


class Bins(NamedTuple):
    """Sums of each bin, (BINS,): answers, their confidences, their outcomes."""

    counts: Floats
    confidences: Floats
    outcomes: Floats

    @property
    def gaps(self) -> Floats:
        """|sum of confidences − sum of outcomes| of each bin."""
        return np.abs(self.confidences - self.outcomes)

    @property
    def expected_error(self) -> float:
        """ECE: the bins' mean distance between confidence and outcome, weighted by their answers."""
        return float(self.gaps.sum() / self.counts.sum())

    @property
    def maximum_error(self) -> float:
        """MCE: the largest distance of a bin's means."""
        there = self.counts > 0
        return float((self.gaps[there] / self.counts[there]).max())


class Null(NamedTuple):
    """What expected calibration error a perfect forecaster has that states the same confidences."""

    mean: float
    high: float
    """What it exceeds once in a hundred times."""


def bin_of(confidences: ArrayLike) -> NDArray[np.int64]:
    """The bin of each. Stated hundredths fall where they should: 0.29 · 100 is less than 29 in floating point."""
    at = np.floor(np.asarray(confidences, dtype=np.float64) * BINS + 1e-9).astype(np.int64)
    return np.minimum(at, BINS - 1)


def binned(confidences: ArrayLike, outcomes: ArrayLike) -> Bins:
    """Raises ValueError where there is no answer, and for what is not in [0, 1]."""
    stated, found = (np.asarray(one, dtype=np.float64) for one in (confidences, outcomes))
    if not stated.size or stated.shape != found.shape:
        raise ValueError(f"{stated.size} confidences and {found.size} outcomes; give one each, of at least one answer")
    for one in (stated, found):
        if not bool(((one >= 0) & (one <= 1)).all()):
            raise ValueError("a confidence or an outcome outside 0 to 1")
    at = bin_of(stated)

    def sums(of: Floats) -> Floats:
        return np.bincount(at, weights=of, minlength=BINS).astype(np.float64)

    return Bins(sums(np.ones_like(stated)), sums(stated), sums(found))


def brier(confidences: ArrayLike, outcomes: ArrayLike) -> float:
    """The mean squared distance of confidence and outcome, 0 at best (Brier 1950)."""
    return float(np.square(np.asarray(confidences, dtype=np.float64) - np.asarray(outcomes, dtype=np.float64)).mean())


def null(confidences: ArrayLike, draws: int = DRAWS, seed: int = SEED) -> Null:
    """Of outcomes drawn as right with the probability stated. Raises ValueError where there is no confidence.

    Outcomes between 0 and 1 vary less than these for the same mean, so for them both numbers are upper bounds.
    """
    errors = null_errors(confidences, draws, np.random.default_rng(seed))
    return Null(float(errors.mean()), float(np.quantile(errors, 0.99)))


def null_errors(confidences: ArrayLike, draws: int, generator: np.random.Generator) -> Floats:
    """The expected calibration error of each draw, (draws,)."""
    stated = np.asarray(confidences, dtype=np.float64)
    if not stated.size:
        raise ValueError("no confidences: there is nothing to draw from")
    values, counts = np.unique(stated, return_counts=True)  # alike ones are drawn together
    right = generator.binomial(counts, values, size=(draws, len(values)))
    inside = np.eye(BINS)[bin_of(values)]  # (values, BINS)
    errors: Floats = np.abs((right - counts * values) @ inside).sum(axis=1) / stated.size
    return errors

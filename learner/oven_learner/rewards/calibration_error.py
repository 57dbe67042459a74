"""Calibration metrics for confidences: Brier score, expected and maximum calibration error, and chance levels.

Outcomes in [0, 1] measure how correct an answer was. torchmetrics and scikit-learn only support outcomes of 0 and 1,
and agree with these functions on them (tests/unit/learner/test_calibration_error.py).

Even a perfect forecaster has a positive error. Its expected value, the *null*, falls with the number of answers. For
250 answers in 10 bins it is 0.06 if confidences are spread out, and 0.02 if all are equal. So an error should be
compared with the null (Bröcker & Smith 2007, "Increasing the reliability of reliability diagrams").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

BINS = 10
"""Number of bins of equal width, [low, high). The last bin includes 1."""
SIMULATIONS = 1000
"""Number of simulations of a perfect forecaster, of which ten exceed the 99th percentile."""
SEED = 20260101
"""Seed of the simulations, so that equal confidences give an equal null."""


class Bins(NamedTuple):
    """Sums per bin, each (BINS,), of the number of answers, their confidences and their outcomes."""

    counts: Floats
    confidences: Floats
    outcomes: Floats

    @property
    def gaps(self) -> Floats:
        """Return |sum of confidences − sum of outcomes| per bin."""
        return np.abs(self.confidences - self.outcomes)

    @property
    def expected_error(self) -> float:
        """The ECE, which is the mean distance between confidence and outcome over bins, weighted by their counts."""
        return float(self.gaps.sum() / self.counts.sum())

    @property
    def maximum_error(self) -> float:
        """The MCE, which is the largest distance between the mean confidence and mean outcome of a bin."""
        has_answers = self.counts > 0
        return float((self.gaps[has_answers] / self.counts[has_answers]).max())


class Null(NamedTuple):
    """The mean and 99th percentile of the calibration error of a perfect forecaster with the same confidences."""

    mean: float
    percentile_99: float


def bin_indices(confidences: ArrayLike) -> NDArray[np.int64]:
    """Return the bin of each confidence. A small tolerance absorbs rounding errors in the multiplication."""
    bins = np.floor(np.asarray(confidences, dtype=np.float64) * BINS + 1e-9).astype(np.int64)
    return np.minimum(bins, BINS - 1)


def bin_answers(confidences: ArrayLike, outcomes: ArrayLike) -> Bins:
    """Sort answers into bins. Raises ValueError if there are no answers, or if a value is outside [0, 1]."""
    stated = np.asarray(confidences, dtype=np.float64)
    observed = np.asarray(outcomes, dtype=np.float64)
    if not stated.size or stated.shape != observed.shape:
        raise ValueError(
            f"there are {stated.size} confidences and {observed.size} outcomes; pass one of each per answer"
        )
    if not all(bool(((values >= 0) & (values <= 1)).all()) for values in (stated, observed)):
        raise ValueError("a confidence or an outcome is outside [0, 1]")
    bins = bin_indices(stated)

    def sum_per_bin(values: Floats) -> Floats:
        return np.bincount(bins, weights=values, minlength=BINS).astype(np.float64)

    return Bins(sum_per_bin(np.ones_like(stated)), sum_per_bin(stated), sum_per_bin(observed))


def brier(confidences: ArrayLike, outcomes: ArrayLike) -> float:
    """Return the mean squared distance between confidence and outcome. 0 is best (Brier 1950)."""
    return float(np.square(np.asarray(confidences, dtype=np.float64) - np.asarray(outcomes, dtype=np.float64)).mean())


def null_error(confidences: ArrayLike, simulations: int = SIMULATIONS, seed: int = SEED) -> Null:
    """Simulate answers that are correct with the stated probability. Raises ValueError without confidences. Outcomes
    strictly between 0 and 1 vary less for the same mean, so for them both numbers are upper bounds."""
    errors = null_errors(confidences, simulations, np.random.default_rng(seed))
    return Null(float(errors.mean()), float(np.quantile(errors, 0.99)))


def null_errors(confidences: ArrayLike, simulations: int, generator: np.random.Generator) -> Floats:
    """Return the expected calibration error of each simulation, (simulations,)."""
    answers = np.asarray(confidences, dtype=np.float64)
    if not answers.size:
        raise ValueError("there are no confidences to simulate")
    levels, counts = np.unique(answers, return_counts=True)  # answers with equal confidence are simulated together
    correct_counts = generator.binomial(counts, levels, size=(simulations, len(levels)))
    bin_membership = np.eye(BINS)[bin_indices(levels)]  # (levels, BINS)
    errors: Floats = np.abs((correct_counts - counts * levels) @ bin_membership).sum(axis=1) / answers.size
    return errors

"""Computes the accuracy and calibration (ECE, MCE and Brier score) of answers with stated confidences.

An unparsed answer counts as wrong and has no confidence, so it affects accuracy but not calibration. The 95 % intervals
are percentile bootstraps over texts, because answers about one text at several depths are not independent. Resampling
adds noise to each bin, so the intervals of ECE and MCE are too high if the answers are almost perfectly calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from oven_learner.rewards.calibration_error import BINS, SEED, Bins, Floats, bin_answers, bin_indices, brier, null_error

RESAMPLES = 1000
"""Number of bootstrap resamples, of which 25 lie beyond each end of a 95 % interval."""


class ScorableAnswer(NamedTuple):
    """One answer to score. `text_number` identifies the text that the answer is about."""

    text_number: int
    confidence: float | None
    """Stated confidence from 0 to 1, or None if the answer cannot be parsed."""
    is_correct: bool


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bin:
    """The answers with low ≤ confidence < high (≤ high in the last bin): their number, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Scores:
    """The scores of a set of answers. Calibration scores are None if no answer has a confidence."""

    count: int
    unparsed: int
    accuracy: Estimate
    ece: Estimate | None
    mce: Estimate | None
    brier: Estimate | None
    ece_null: float | None
    """Mean ECE of a perfect forecaster with these confidences."""
    ece_null_99: float | None
    """The 99th percentile of that forecaster's ECE."""
    bins: tuple[Bin, ...]
    """The bins that contain answers."""


def compute_scores(answers: Sequence[ScorableAnswer]) -> Scores:
    """Return the scores of these answers. Raises ValueError if there are none."""
    if not answers:
        raise ValueError("there are no answers to score")
    resampled = _resampled_scores(answers)
    accuracy = _estimate(sum(answer.is_correct for answer in answers) / len(answers), resampled["accuracy"])
    pairs = [(answer.confidence, float(answer.is_correct)) for answer in answers if answer.confidence is not None]
    if not pairs:
        return Scores(len(answers), len(answers), accuracy, None, None, None, None, None, ())
    confidences, outcomes = (np.array(column) for column in zip(*pairs, strict=True))
    bins, null = bin_answers(confidences, outcomes), null_error(confidences)
    return Scores(
        count=len(answers),
        unparsed=len(answers) - len(pairs),
        accuracy=accuracy,
        ece=_estimate(bins.expected_error, resampled["ece"]),
        mce=_estimate(bins.maximum_error, resampled["mce"]),
        brier=_estimate(brier(confidences, outcomes), resampled["brier"]),
        ece_null=null.mean,
        ece_null_99=null.percentile_99,
        bins=_bins(bins),
    )


def _resampled_scores(answers: Sequence[ScorableAnswer]) -> dict[str, Floats]:
    """Return each score for all resamples of the texts, with shape (RESAMPLES,). Calibration scores are NaN for a
    resample without confidences."""
    _, text_indices = np.unique([answer.text_number for answer in answers], return_inverse=True)  # (N,), from 0 on
    correct = np.array([answer.is_correct for answer in answers], dtype=np.float64)
    confidences = np.array([np.nan if answer.confidence is None else answer.confidence for answer in answers])
    has_confidence = ~np.isnan(confidences)
    one_hot = np.eye(BINS)[bin_indices(np.nan_to_num(confidences))] * has_confidence[:, None]  # (N, BINS)
    errors = np.where(has_confidence, correct - confidences, 0.0)[:, None]
    columns = np.hstack([one_hot, one_hot * errors, errors**2, correct[:, None], np.ones((len(answers), 1))])
    sums = np.zeros((text_indices.max() + 1, columns.shape[1]))  # sums over the answers about each text
    np.add.at(sums, text_indices, columns)
    texts = len(sums)
    repetitions = np.random.default_rng(SEED).multinomial(texts, np.full(texts, 1 / texts), size=RESAMPLES)
    resamples = repetitions @ sums  # (RESAMPLES, columns)
    bin_counts, bin_gaps = resamples[:, :BINS], np.abs(resamples[:, BINS : 2 * BINS])
    squared_errors, correct_counts, answer_counts = resamples[:, 2 * BINS :].T
    confidence_counts = bin_counts.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "accuracy": correct_counts / answer_counts,
            "ece": bin_gaps.sum(axis=1) / confidence_counts,
            "mce": np.where(bin_counts > 0, bin_gaps / bin_counts, 0).max(axis=1),
            "brier": squared_errors / confidence_counts,
        }


def _estimate(value: float, resampled: Floats) -> Estimate:
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def _bins(bins: Bins) -> tuple[Bin, ...]:
    return tuple(
        Bin(index / BINS, (index + 1) / BINS, int(count), float(confidence_sum / count), float(outcome_sum / count))
        for index, (count, confidence_sum, outcome_sum) in enumerate(zip(*bins, strict=True))
        if count
    )

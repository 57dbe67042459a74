"""Score answers with a stated confidence: accuracy, ECE, MCE and Brier, with intervals and ECE's null.

An answer that does not parse is wrong and has no confidence. It counts for accuracy and not for calibration. Intervals
are 95 % percentile bootstraps over texts, because answers about one text at several depths are not independent.
Resampling adds noise to each bin, so the intervals of ECE and MCE are too high near their null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from oven_learner.rewards.calibration_error import BINS, SEED, Bins, Floats, bin_answers, bin_of, brier, null_error

RESAMPLES = 1000
"""Number of bootstrap resamples. 25 of them lie beyond each 2.5 % percentile."""


class Scored(NamedTuple):
    """One answer: its text, its confidence from 0 to 1 (None if it does not parse), and whether it is right."""

    text: int
    confidence: float | None
    right: bool


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bin:
    """The answers with low ≤ confidence < high (≤ high in the last bin): their number and means."""

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


def scores(answers: Sequence[Scored]) -> Scores:
    """Compute the scores. Raises ValueError without answers."""
    if not answers:
        raise ValueError("no answers to score")
    drawn = _resampled(answers)
    accuracy = _estimate(sum(answer.right for answer in answers) / len(answers), drawn["accuracy"])
    stated = [(answer.confidence, float(answer.right)) for answer in answers if answer.confidence is not None]
    if not stated:
        return Scores(len(answers), len(answers), accuracy, None, None, None, None, None, ())
    confidences, outcomes = (np.array(column) for column in zip(*stated, strict=True))
    bins, perfect = bin_answers(confidences, outcomes), null_error(confidences)
    return Scores(
        count=len(answers),
        unparsed=len(answers) - len(stated),
        accuracy=accuracy,
        ece=_estimate(bins.expected_error, drawn["ece"]),
        mce=_estimate(bins.maximum_error, drawn["mce"]),
        brier=_estimate(brier(confidences, outcomes), drawn["brier"]),
        ece_null=perfect.mean,
        ece_null_99=perfect.high,
        bins=_bins(bins),
    )


def _resampled(answers: Sequence[Scored]) -> dict[str, Floats]:
    """Return each score for each resample of the texts, (RESAMPLES,). It is NaN if a resample has no confidences."""
    _, text = np.unique([answer.text for answer in answers], return_inverse=True)  # (N,), from 0 on
    right = np.array([answer.right for answer in answers], dtype=np.float64)
    stated = np.array([np.nan if answer.confidence is None else answer.confidence for answer in answers])
    parsed = ~np.isnan(stated)
    inside = np.eye(BINS)[bin_of(np.nan_to_num(stated))] * parsed[:, None]  # (N, BINS)
    errors = np.where(parsed, right - stated, 0.0)[:, None]
    columns = np.hstack([inside, inside * errors, errors**2, right[:, None], np.ones((len(answers), 1))])
    sums = np.zeros((text.max() + 1, columns.shape[1]))  # of each text's answers
    np.add.at(sums, text, columns)
    texts = len(sums)
    times = np.random.default_rng(SEED).multinomial(texts, np.full(texts, 1 / texts), size=RESAMPLES)
    drawn = times @ sums
    counts, gaps, total = drawn[:, :BINS], np.abs(drawn[:, BINS : 2 * BINS]), drawn[:, :BINS].sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "accuracy": drawn[:, -2] / drawn[:, -1],
            "ece": gaps.sum(axis=1) / total,
            "mce": np.where(counts > 0, gaps / counts, 0).max(axis=1),
            "brier": drawn[:, 2 * BINS] / total,
        }


def _estimate(value: float, drawn: Floats) -> Estimate:
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def _bins(bins: Bins) -> tuple[Bin, ...]:
    return tuple(
        Bin(index / BINS, (index + 1) / BINS, int(count), float(confidence / count), float(outcome / count))
        for index, (count, confidence, outcome) in enumerate(zip(*bins, strict=True))
        if count
    )

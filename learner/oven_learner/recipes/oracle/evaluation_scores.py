"""Scores of answers with a stated confidence: accuracy, ECE, MCE and Brier, with intervals and with ECE's null.

An answer that does not parse is wrong, and has no confidence: it counts for accuracy and not for calibration.
Intervals are 95 % percentile bootstraps over texts, since the answers about one text at several depths are not
independent. Resampling adds noise to each bin, so intervals of ECE and MCE lie high where they are near their null.
The null is what ECE a perfect forecaster would have that states these confidences (Bröcker & Smith 2007): about .05 at
250 spread confidences, and not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 10
RESAMPLES = 1000
"""Of the bootstrap, and draws of the null: percentiles of 2.5 % rest on 25."""
SEED = 20260101


class Scored(NamedTuple):
    """One answer: which text it is about, its confidence from 0 to 1 or None where it does not parse, and whether it
    is right."""

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
    """The answers with low ≤ confidence < high (of the last: ≤ high): how many, and their means."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Scores:
    """Of a set of answers. What rests on confidences is None where no answer has one."""

    count: int
    unparsed: int
    accuracy: Estimate
    ece: Estimate | None
    mce: Estimate | None
    brier: Estimate | None
    ece_null: float | None
    """The mean ECE of a perfect forecaster with these confidences."""
    ece_null_99: float | None
    """What ECE it exceeds once in a hundred times."""
    bins: tuple[Bin, ...]
    """Those with an answer in them."""


def scores(answers: Sequence[Scored]) -> Scores:
    """Raises ValueError where there is no answer."""
    if not answers:
        raise ValueError("no answers to score")
    sums = _sums(answers)  # (texts, 4 · BINS + 2)
    point = _of(sums.sum(axis=0, keepdims=True))
    generator = np.random.default_rng(SEED)
    texts = len(sums)
    weights = generator.multinomial(texts, np.full(texts, 1 / texts), size=RESAMPLES)  # (RESAMPLES, texts)
    drawn = _of(weights @ sums)
    confidences = np.array([one.confidence for one in answers if one.confidence is not None])
    known = len(confidences) > 0
    null = null_ece(confidences, generator) if known else None
    return Scores(
        count=len(answers),
        unparsed=len(answers) - len(confidences),
        accuracy=_estimate(point, drawn, "accuracy"),
        ece=_estimate(point, drawn, "ece") if known else None,
        mce=_estimate(point, drawn, "mce") if known else None,
        brier=_estimate(point, drawn, "brier") if known else None,
        ece_null=None if null is None else float(null.mean()),
        ece_null_99=None if null is None else float(np.quantile(null, 0.99)),
        bins=_bins(sums.sum(axis=0)),
    )


def null_ece(confidences: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
    """ECE of RESAMPLES draws in which an answer is right with the probability that it states, (RESAMPLES,)."""
    right = generator.random((RESAMPLES, len(confidences))) < confidences
    inside = np.eye(BINS)[_bin_of(confidences)]  # (N, BINS)
    gaps: NDArray[np.float64] = np.abs((right - confidences) @ inside)
    found: NDArray[np.float64] = gaps.sum(axis=1) / len(confidences)
    return found


def _bin_of(confidences: NDArray[np.float64]) -> NDArray[np.int64]:
    # 0.3 · 10 is 3 in floats, and 0.29 · 10 is 2.9: stated hundredths fall where they should.
    return np.minimum((np.round(confidences * 1e9) / 1e9 * BINS + 1e-9).astype(np.int64), BINS - 1)


def _sums(answers: Sequence[Scored]) -> NDArray[np.float64]:
    """Per text: of each bin the answers, their confidences, the right ones and the squared errors; all, and the right
    ones of all."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(one.text for one in answers))}
    sums = np.zeros((len(rows), 4 * BINS + 2))
    for one in answers:
        row = sums[rows[one.text]]
        row[-2] += 1
        row[-1] += one.right
        if one.confidence is not None:
            at = int(_bin_of(np.array([one.confidence]))[0])
            row[[at, BINS + at, 2 * BINS + at, 3 * BINS + at]] += (
                1,
                one.confidence,
                one.right,
                (one.confidence - one.right) ** 2,
            )
    return sums


def _of(sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Each score of each row of sums, (R,)."""
    counts, confidence, right, squares = (sums[:, at * BINS : (at + 1) * BINS] for at in range(4))
    parsed = counts.sum(axis=1)
    gaps = np.abs(confidence - right)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "accuracy": sums[:, -1] / sums[:, -2],
            "ece": gaps.sum(axis=1) / parsed,
            "mce": np.where(counts > 0, gaps / counts, 0).max(axis=1),
            "brier": squares.sum(axis=1) / parsed,
        }


def _estimate(point: dict[str, NDArray[np.float64]], drawn: dict[str, NDArray[np.float64]], name: str) -> Estimate:
    low, high = np.nanquantile(drawn[name], [0.025, 0.975])
    return Estimate(float(point[name][0]), float(low), float(high))


def _bins(sums: NDArray[np.float64]) -> tuple[Bin, ...]:
    return tuple(
        Bin(
            low=at / BINS,
            high=(at + 1) / BINS,
            count=int(sums[at]),
            confidence=float(sums[BINS + at] / sums[at]),
            accuracy=float(sums[2 * BINS + at] / sums[at]),
        )
        for at in range(BINS)
        if sums[at]
    )

"""Calibration errors against torchmetrics, scikit-learn and brute force, and the null of a perfect forecaster."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from torchmetrics.functional.classification import binary_calibration_error

from oven_learner.rewards.calibration_error import BINS, bin_answers, bin_indices, brier, null_error

HUNDREDTHS = st.integers(0, 100).map(lambda n: n / 100)
ANSWERS = st.lists(st.tuples(HUNDREDTHS, st.floats(0, 1, allow_subnormal=False)), min_size=1, max_size=60)


def brute_force(answers: list[tuple[float, float]]) -> tuple[float, float]:
    """ECE and MCE by their definition, with the bins of whole hundredths."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for confidence, outcome in answers:
        bins.setdefault(min(round(confidence * 100) // BINS, BINS - 1), []).append((confidence, outcome))
    gaps = [
        (len(inside), abs(math.fsum(c for c, _ in inside) - math.fsum(y for _, y in inside)) / len(inside))
        for inside in bins.values()
    ]
    return sum(n * gap for n, gap in gaps) / len(answers), max(gap for _, gap in gaps)


@given(ANSWERS)
def test_soft_outcomes_against_brute_force(answers: list[tuple[float, float]]) -> None:
    bins = bin_answers(*zip(*answers, strict=True))
    expected, largest = brute_force(answers)
    assert bins.expected_error == pytest.approx(expected, abs=1e-12)
    assert bins.maximum_error == pytest.approx(largest, abs=1e-12)
    squares = math.fsum((c - y) ** 2 for c, y in answers) / len(answers)
    assert brier(*zip(*answers, strict=True)) == pytest.approx(squares, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_hard_outcomes_against_the_libraries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stated = rng.uniform(0.001, 0.999, 500)  # 1 is a bin of its own in torchmetrics, and in the last one here
    right = (rng.random(500) < stated**1.5).astype(float)
    bins = bin_answers(stated, right)
    preds, target = torch.tensor(stated), torch.tensor(right).long()
    expected = binary_calibration_error(preds, target, n_bins=BINS, norm="l1")
    largest = binary_calibration_error(preds, target, n_bins=BINS, norm="max")
    assert bins.expected_error == pytest.approx(float(expected), abs=1e-6)
    assert bins.maximum_error == pytest.approx(float(largest), abs=1e-6)
    assert brier(stated, right) == pytest.approx(brier_score_loss(right, stated), abs=1e-6)


def test_a_confidence_of_1_is_in_the_last_bin_and_hundredths_are_in_the_right_bins() -> None:
    assert bin_indices([n / 100 for n in range(101)]).tolist() == [min(n // 10, 9) for n in range(101)]
    assert bin_answers([1.0, 0.9], [0.0, 1.0]).expected_error == pytest.approx(0.45)
    theirs = binary_calibration_error(torch.tensor([1.0, 0.9]), torch.tensor([0, 1]), n_bins=BINS, norm="l1")
    assert float(theirs) == pytest.approx(0.55), "there it is a bin of its own"


def test_the_null_of_a_perfect_forecaster() -> None:
    """Over 2,000 forecasters drawn here one by one; and .062 for 250 that are spread evenly, .024 for constant ones."""
    rng = np.random.default_rng(0)
    spread = rng.random(250)
    for stated in (spread, np.full(250, 0.7)):
        errors = [bin_answers(stated, rng.random(250) < stated).expected_error for _ in range(2000)]
        null_errors = null_error(stated)
        assert null_errors.mean == pytest.approx(np.mean(errors), abs=0.002)
        assert null_errors.percentile_99 == pytest.approx(np.quantile(errors, 0.99), abs=0.012)
    assert null_error(np.arange(1, 500, 2) / 500).mean == pytest.approx(0.0625, abs=0.001)
    assert null_error(np.full(250, 0.6)).mean == pytest.approx(0.024, abs=0.001)
    assert null_error(spread) == null_error(spread)


@pytest.mark.parametrize("arguments", [([], []), ([0.5], [0.5, 1]), ([1.5], [1]), ([0.5], [math.nan])])
def test_values_outside_0_to_1_are_refused(arguments: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match=r"confidence"):
        bin_answers(*arguments)

"""CUSUM and Page-Hinkley: silent on noise and trends, and a change is dated to the reading."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from oven_agents.diagnosis.change_points import REFERENCE_LENGTH, Change, Reference, cusum, page_hinkley


def noise(seed: int, count: int, level: float = 0.0, deviation: float = 1.0) -> list[float]:
    draw = Random(seed)
    return [draw.gauss(level, deviation) for _ in range(count)]


def large(values: list[float], size: float = 2.5) -> list[Change]:
    """Changes as gauges take them: noise alone makes smaller ones."""
    return [change for change in cusum(values) if change.size >= size]


def test_noise_alone_makes_no_large_change() -> None:
    result = [cusum(noise(seed, 400)) for seed in range(100)]
    assert sum(map(bool, result)) <= 25, "one in six series, says CUSUM_LIMIT"
    assert sum(change.size >= 2.5 for changes in result for change in changes) <= 3


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [5.0, 15.0, 50.0])
def test_a_jump_is_detected_soon_and_only_once(sign: int, size: float) -> None:
    """But for those that begin while noise has the sums half full, or a level is being learnt again: one in eight."""
    missed = 0
    for seed in range(40):
        onset = 60 + 2 * seed
        values = [value + (sign * size if index >= onset else 0) for index, value in enumerate(noise(seed, 250, 100.0))]
        result = [change for change in cusum(values) if change.detected_at >= onset and change.size >= 0.6 * size]
        near = [change for change in result if abs(change.onset - onset) <= 5 and change.detected_at - onset <= 10]
        missed += not (len(near) == 1 and near[0].sign == sign)
    assert missed <= 7


def test_the_onset_is_the_first_reading_of_the_new_level() -> None:
    errors = []
    for seed in range(60):
        values = [value + (3 if index >= 150 else 0) for index, value in enumerate(noise(seed, 260))]
        errors.append(next(change for change in cusum(values) if change.detected_at >= 150).onset - 150)
    assert median(map(abs, errors)) <= 1 and sum(abs(error) <= 3 for error in errors) >= 48


@pytest.mark.parametrize("slope", [0.03, -0.03])
def test_a_trend_that_continues_or_levels_off_is_not_a_change(slope: float) -> None:
    result = 0
    for seed in range(50):
        scatter = noise(seed, 300)
        result += bool(large([value + slope * index for index, value in enumerate(scatter)], 3.0))
        result += bool(large([value + slope * min(index, 150) for index, value in enumerate(scatter)], 3.0))
    assert result <= 12, "of a hundred series whose level moves by 4 or 9 standard deviations: one in ten, says AHEAD"


def test_only_page_hinkley_detects_a_slow_drift() -> None:
    values = [value + max(0, index - 80) * 0.05 for index, value in enumerate(noise(6, 300))]
    result = page_hinkley(values, 1)
    assert result is not None and 70 <= result.onset <= 120 and page_hinkley(values, -1) is None
    assert page_hinkley(noise(7, 300), 1) is None


def test_an_outlier_is_not_a_change_and_a_constant_series_raises_nothing() -> None:
    values = noise(8, 200)
    values[120] = 1e6
    assert not large(values)
    assert Reference.from_readings([0.0] * REFERENCE_LENGTH).noise > 0 and not cusum([1.0] * 200)
    assert not cusum([1.0] * REFERENCE_LENGTH) and not cusum([]) and page_hinkley([1.0] * REFERENCE_LENGTH, 1) is None

"""Starts and settings: pure, and free of torch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_recipes.grpo.settings import (
    LEARNING_RATE_RANGE,
    NAMES,
    TUNED_LEARNING_RATE,
    GrpoSettings,
    parse_start,
)


@given(st.integers(), st.integers(1, 6))
def test_a_drawn_start_is_in_range_and_repeatable(seed: int, count: int) -> None:
    levels = [f"len{i}" for i in range(count)]
    start = parse_start("drawn", seed, levels)
    low, high = LEARNING_RATE_RANGE
    assert low * 0.999 <= start.learning_rate / TUNED_LEARNING_RATE <= high * 1.001
    assert list(start.mixture) == levels
    assert min(start.mixture.values()) >= 0
    assert sum(start.mixture.values()) == pytest.approx(1)
    assert start == parse_start("drawn", seed, levels)


@pytest.mark.parametrize("name", NAMES)
def test_every_start_mixes_the_recipes_levels(name: str) -> None:
    start = parse_start(name, 7)
    assert start.name == name
    assert tuple(start.mixture) == GrpoSettings().levels
    assert sum(start.mixture.values()) == pytest.approx(1)


def test_drills_have_the_fault_that_they_name() -> None:
    assert parse_start("drill:lr-low", 0).learning_rate == pytest.approx(TUNED_LEARNING_RATE / 10)
    assert parse_start("drill:lr-high", 0).learning_rate == pytest.approx(TUNED_LEARNING_RATE * 10)
    weak = parse_start("drill:weak-teacher", 0)
    assert (weak.beta, weak.teacher, weak.learning_rate) == (1.0, "small", TUNED_LEARNING_RATE)
    assert len(set(weak.mixture.values())) == 1 and "beta 1 to the small teacher" in weak.describe()
    assert parse_start("drill:easy-only", 0).mixture == {"len3": 1.0, "len4": 0.0, "len5": 0.0}


def test_an_unknown_start_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="drill:lr-low"):
        parse_start("drill:lr-lo", 0)
    with pytest.raises(ValueError, match="tuned"):
        parse_start("zzz", 0)

"""Starts and settings: pure, and free of torch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_recipes.grpo.settings import (
    GAMED_WEIGHT,
    LEARNING_RATE_RANGE,
    STARTS,
    TUNED_LEARNING_RATE,
    GrpoSettings,
    parse_start,
)


@given(st.integers(), st.integers(1, 6))
def test_a_drawn_start_is_in_range_and_repeatable(seed: int, count: int) -> None:
    settings = GrpoSettings(lengths=tuple(range(count)))
    start = parse_start("drawn", seed, settings)
    low, high = LEARNING_RATE_RANGE
    assert low * 0.999 <= start.learning_rate / TUNED_LEARNING_RATE <= high * 1.001
    assert tuple(start.mixture) == settings.levels
    assert min(start.mixture.values()) >= 0
    assert sum(start.mixture.values()) == pytest.approx(1)
    assert start == parse_start("drawn", seed, settings)


def test_an_unknown_start_names_a_similar_one_or_all() -> None:
    with pytest.raises(ValueError, match="drill:lr-low"):
        parse_start("drill:lr-lo", 0, GrpoSettings())
    with pytest.raises(ValueError, match="tuned"):
        parse_start("zzz", 0, GrpoSettings())


def test_the_tour_stages_every_fault_and_a_drill_only_its_own() -> None:
    settings = GrpoSettings()
    tuned, tour = parse_start("tuned", 0, settings), parse_start("tour", 0, settings)
    assert tour.learning_rate == pytest.approx(tuned.learning_rate / 10)
    assert tour.mixture == {"len3": 1.0, "len4": 0.0, "len5": 0.0}
    assert tour.teacher == "small" and tour.beta
    assert tour.gamed_weight == GAMED_WEIGHT
    gamed = parse_start("drill:gamed-rule", 0, settings)
    assert replace(gamed, name="tuned", label="", beta=None, gamed_weight=0.0) == tuned
    for name in STARTS:
        start = parse_start(name, 0, settings)
        assert bool(start.gamed_weight) == (name in ("tour", "drill:gamed-rule"))

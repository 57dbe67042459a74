"""The newest values of a series against those before them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from oven_agents.stats.level_shift import MIN_EARLIER, shift_at, shift_of_halves, shift_of_newest, standardised_rise

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60)


@given(VALUES, st.data())
def test_a_series_is_parted_without_loss(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    for shift in (
        shift_of_newest(values, count),
        shift_of_halves(values),
        shift_at(list(enumerate(values)), len(values) - count),
    ):
        assert [*shift.before, *shift.now] == values
    assert (
        len(shift_of_newest(values, count).now)
        == len(shift_at(list(enumerate(values)), len(values) - count).now)
        == count
    )
    assert len(shift_of_halves(values).before) == len(values) // 2


def test_a_rise_needs_some_values_before_it() -> None:
    level = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1]
    assert len(level) == MIN_EARLIER
    assert standardised_rise([*level, 9.0, 9.0], 2) > 3
    assert standardised_rise([*level[1:], 9.0, 9.0], 2) == -math.inf


def test_one_odd_value_is_no_rise() -> None:
    level = [1.0, 1.1, 0.9] * 6
    assert standardised_rise([*level, 1.0, 1.0, 1.0, 1.0, 1e9], 5) < 3

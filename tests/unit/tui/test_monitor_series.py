"""Curves in bounded memory, and charts in braille: pure, by example and by property."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from oven_tui.model import braille_chart
from oven_tui.model.metric_series import EXACT_POINTS, MAX_BUCKETS, ColumnCache, Series

ANY = st.floats(allow_nan=True, allow_infinity=True)


def series(values: list[float], stride: int = 1) -> Series:
    made = Series()
    for index, value in enumerate(values):
        made.add(index * stride, value)
    return made


def test_a_spike_is_never_lost_however_long_the_run() -> None:
    count = 50_000
    made = series([100.0 if tick == 12_345 else -7.0 if tick == 40_000 else 1.0 for tick in range(count)])
    assert len(made.buckets) <= MAX_BUCKETS
    columns = made.columns(0, count - 1, 80)
    assert len(columns) == 80
    assert [c.key for c in columns if c.high == 100.0] == [12_345 * 80 // count]
    assert [c.key for c in columns if c.low == -7.0] == [40_000 * 80 // count]


def test_the_newest_points_are_exact_in_a_long_run() -> None:
    made = series([float(tick) for tick in range(20_000)])
    columns = made.columns(19_900, 19_999, 100)
    assert [c.last for c in columns] == [float(tick) for tick in range(19_900, 20_000)]
    assert all(c.low == c.high for c in columns)


@given(st.lists(ANY, max_size=3 * EXACT_POINTS), st.integers(1, 50), st.integers(1, 90))
def test_columns_hold_the_least_the_greatest_and_every_value_that_is_no_number(
    values: list[float], stride: int, width: int
) -> None:
    made = series(values, stride)
    columns = made.columns(0, made.last_tick, width)
    finite = [value for value in values if math.isfinite(value)]
    assert sum(c.broken_count for c in columns) == len(values) - len(finite)
    assert min((c.low for c in columns), default=math.inf) == min(finite, default=math.inf)
    assert max((c.high for c in columns), default=-math.inf) == max(finite, default=-math.inf)
    assert all(0 <= c.key < width for c in columns)
    assert [c.key for c in columns] == sorted({c.key for c in columns})


def test_a_chart_that_grows_shows_the_same_columns_as_one_drawn_anew() -> None:
    made, cache, last = Series(), ColumnCache(), 100
    for tick in range(3 * MAX_BUCKETS):
        made.add(tick, math.nan if tick % 97 == 0 else math.sin(tick))
        last = last if tick <= last else 2 * last  # the axis grows, as the buckets do
        for window in (0, tick - 50):
            assert repr(cache.columns(made, window, last, 66)) == repr(made.columns(window, last, 66))


STYLES = st.sampled_from(["noisy", "measured", "set"])


@example(values=[1.0, 1.7e308], style="set", width=3, height=2)
@example(values=[5e-324, 1.0], style="set", width=3, height=2)
@example(values=[-1.7e308, 1.7e308], style="noisy", width=3, height=2)
@given(st.lists(ANY, max_size=60), STYLES, st.integers(1, 30), st.integers(1, 9))
def test_any_values_make_a_chart_of_exactly_its_size(
    values: list[float], style: braille_chart.CurveStyle, width: int, height: int
) -> None:
    columns = series(values).columns(0, max(0, len(values) - 1), width * 2)
    scale = braille_chart.round_bounds(columns, style)
    assert scale.low < scale.high
    rows = braille_chart.draw_chart(columns, scale, style, {0: braille_chart.Mark("▲", "agent-1")}, width, height)
    assert [sum(len(text) for text, _ in row) for row in rows] == [width] * height
    assert all(len(braille_chart.axis_number(value)) <= 6 for value in (scale.low, scale.middle(), scale.high))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_the_bounds_hold_all_that_was_measured(values: list[float]) -> None:
    scale = braille_chart.round_bounds(series(values).columns(0, len(values) - 1, 100), "noisy")
    rounding = 1e-8 * (max(values) - min(values))
    assert scale.low <= min(values) + rounding
    assert scale.high >= max(values) - rounding


def test_a_value_that_is_no_number_leaves_a_gap_and_a_mark() -> None:
    values = [1.0, 1.0, math.nan, math.nan, 1.0, 1.0]
    columns = series(values).columns(0, 5, 12)
    (row,) = braille_chart.draw_chart(columns, braille_chart.Bounds(0.0, 2.0), "measured", {}, 6, 1)
    assert [kind for _, kind in row] == ["line", "broken", "line"]
    assert "".join(text for text, _ in row)[2:4] == "××"


def test_a_knob_is_drawn_in_steps_and_on_a_log_scale_when_it_ranges_far() -> None:
    made = Series()
    for tick, value in ((0, 0.01), (5, 1.0)):
        made.add(tick, value)
    scale = braille_chart.round_bounds(made.columns(0, 9, 20), "set")
    assert (scale.low, scale.high, scale.log) == (0.01, 1.0, True)
    rows = braille_chart.draw_chart(made.columns(0, 9, 20), scale, "set", {}, 10, 3)
    drawn = ["".join(text for text, _ in row) for row in rows]
    assert drawn[2].startswith("⣀⣀⣀⣀⣀")  # level, then upright
    assert drawn[1][:5].strip() == ""

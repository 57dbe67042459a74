"""Themes, ASCII and no colour; scales, crosshair and the filter of metrics; the machine."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.support.monitor_log import recorded
from tests.unit.tui.test_monitor_keys import ABOUT, monitor, screen_text, until

from oven_tui.app import MonitorApp
from oven_tui.appearance import THEMES, Appearance
from oven_tui.model import braille_chart
from oven_tui.model.ascii_text import SIGNS, ascii_text
from oven_tui.model.cell_text import FATES, GLYPHS
from oven_tui.model.machine import Machine, seconds, short
from oven_tui.model.metric_series import Series
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.chart import Chart

EVENTS = recorded()


@given(st.text())
def test_ascii_keeps_the_cells(text: str) -> None:
    made = ascii_text(text)
    assert made.isascii() and cell_len(made) == sum(cell_len(char) for char in text)


def test_no_two_signs_of_a_chart_share_their_ascii() -> None:
    marks = [*GLYPHS, "⚑", *(FATES[fate][0] for fate in ("failed", "pending"))]
    assert len({SIGNS[mark] for mark in marks}) == len(marks)
    assert [ascii_text(char) for char in "⠁⣀⠒⡇⢁⡈"] == ["'", ".", "-", "|", "\\", "/"]


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
async def test_ascii_shows_nothing_else_on_any_page(size: tuple[int, int]) -> None:
    app = MonitorApp(ABOUT, appearance=Appearance(ascii=True))
    async with app.run_test(size=size) as pilot:
        app.take(EVENTS)
        app.paint()
        for keys in ((), ("g", "j", "enter"), ("escape", "question_mark"), ("escape", "l")):
            await pilot.press(*keys)
            await pilot.pause()
            drawn = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
            assert drawn.isascii()


async def test_no_colour_sends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = MonitorApp(ABOUT)
    async with app.run_test(size=(100, 30)) as pilot:
        app.take(EVENTS)
        app.paint()
        await pilot.press("g", "j")
        await pilot.pause()
        styles = [s.style for strip in app.screen._compositor.render_strips() for s in strip if s.style]
        colours = {colour.name for style in styles for colour in (style.color, style.bgcolor) if colour is not None}
        assert colours <= {"default"}
        assert any(style.reverse for style in styles) and any(style.bold for style in styles)


async def test_the_key_goes_through_the_themes() -> None:
    async with monitor(EVENTS) as (app, pilot):
        seen = [app.theme]
        for _ in THEMES:
            await pilot.press("ctrl+t")
            seen.append(app.theme)
        assert seen == [*THEMES, THEMES[0]]


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_a_log_scale_holds_both_ends_on_round_numbers(one: float, other: float) -> None:
    made = Series()
    made.add(0, one)
    made.add(1, other)
    scale = braille_chart.bounds(made.columns(0, 1, 4), "noisy", log=True)
    low, high = min(one, other), max(one, other)
    assert scale.log and scale.low <= low * (1 + 1e-8) and scale.high >= high * (1 - 1e-8) and scale.low < scale.high
    assert all(re.fullmatch(r"[1259]\.?\d*e[-+]\d+", f"{end:.2e}") for end in (scale.low, scale.high))


async def test_log_scale_by_key_says_where_it_cannot_be() -> None:
    async with monitor(EVENTS) as (app, pilot):
        await pilot.press("L")
        await pilot.pause()
        charts = {chart.metric: chart for chart in app.query(Chart)}
        text = screen_text(app)
        assert all(chart.logarithmic for chart in charts.values()) and "log" in text
        await pilot.press("L")
        assert not any(chart.logarithmic for chart in app.query(Chart))


async def test_the_crosshair_follows_the_chosen_decision() -> None:
    async with monitor(EVENTS) as (app, pilot):
        assert {chart.cross for chart in app.query(Chart)} == {None}, "none while the list follows the newest"
        await pilot.press("g", "j")
        await until(pilot, lambda: app.charts.cross is not None)
        tick = app.charts.cross
        assert tick is not None and {chart.cross for chart in app.query(Chart)} == {tick}
        value = app.view.series["reward"].at(tick)
        assert f"step {app.view.step_at(tick)} {value:.4g}" in screen_text(app)
        assert any(kind == "cross" for row in app.query(Chart).first().drawn_rows[2:] for _, kind in row)
        await pilot.press("G")
        await until(pilot, lambda: app.charts.cross is None)


async def test_metrics_are_filtered_by_words() -> None:
    async with monitor(EVENTS) as (app, pilot):
        await pilot.press("f", *"e !reward", "enter")
        await until(pilot, lambda: app.charts.wanted == "e !reward")
        names = [chart.metric for chart in app.query(Chart) if chart.metric]
        assert names and all("e" in name and "reward" not in name for name in names)
        assert "metrics: e !reward" in screen_text(app)
        await pilot.press("f", *" zzz")
        await until(pilot, lambda: "no metric has such a name" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.query(Chart).first().metric == "reward")


def test_the_machine_is_told_from_the_newest_measurements() -> None:
    view = MonitorView()
    assert Machine.of(view).rows(100) == []
    values = {
        "time/step": 0.5, "time/generate": 0.25, "time/train": 0.2, "time/controller": 1e-4, "tokens_per_s": 12_345.0,
        "machine/memory_gib": 1.5, "machine/gpu0_memory_gib": 40.0, "machine/gpu0_use": 0.97, "time/reward": math.nan,
    }  # fmt: skip
    for name, value in values.items():
        view.series[name] = Series()
        view.series[name].add(0, value)
    speed, parts = ("".join(text for text, _ in row) for row in Machine.of(view).rows(120))
    assert "step 500 ms" in speed and "12.3k tokens/s" in speed and "controller 100 µs" in speed
    assert "learner 1.50 GiB" in speed and "GPU 0 97% 40.0 GiB" in speed
    assert "generate 50%" in parts and "train 40%" in parts and "other 10%" in parts and "reward" not in parts
    narrow = Machine.of(view).rows(60)
    assert all(sum(cell_len(text) for text, _ in row) <= 60 for row in narrow)
    assert (seconds(2.5), seconds(3e-5), short(1.5e6), short(12)) == ("2.5 s", "30 µs", "1.5M", "12")


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=1500), st.integers(1, 60))
def test_columns_asked_again_and_again_are_those_asked_once(values: list[float], width: int) -> None:
    often, once = Series(), Series()
    for tick, value in enumerate(values):
        often.add(tick, value)
        once.add(tick, value)
        if tick % 97 == 0:
            often.columns(0, 2000, width)
    assert repr(often.columns(0, 2000, width)) == repr(once.columns(0, 2000, width))

"""Themes, ASCII and no colour; scales, crosshair and the filter of metrics; the machine."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.monitor_log import recorded
from tests.unit.tui.test_monitor_keys import ABOUT

from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.model import braille_chart
from oven_tui.model.metric_series import Series

EVENTS = recorded()


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
async def test_ascii_shows_nothing_else_on_any_page(size: tuple[int, int]) -> None:
    app = MonitorApp(ABOUT, appearance=Appearance(ascii=True))
    async with app.run_test(size=size) as pilot:
        app.add_events(EVENTS)
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
        app.add_events(EVENTS)
        app.paint()
        await pilot.press("g", "j")
        await pilot.pause()
        styles = [s.style for strip in app.screen._compositor.render_strips() for s in strip if s.style]
        colours = {colour.name for style in styles for colour in (style.color, style.bgcolor) if colour is not None}
        assert colours <= {"default"}
        assert any(style.reverse for style in styles) and any(style.bold for style in styles)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_a_log_scale_holds_both_ends_on_round_numbers(first: float, second: float) -> None:
    made = Series()
    made.add(0, first)
    made.add(1, second)
    scale = braille_chart.round_bounds(made.columns(0, 1, 4), "noisy", log=True)
    low, high = min(first, second), max(first, second)
    assert scale.log and scale.low <= low * (1 + 1e-8) and scale.high >= high * (1 - 1e-8) and scale.low < scale.high
    assert all(re.fullmatch(r"[1259]\.?\d*e[-+]\d+", f"{end:.2e}") for end in (scale.low, scale.high))

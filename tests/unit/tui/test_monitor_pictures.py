"""What the monitor looks like, against stored pictures; OVEN_UPDATE_PICTURES=1 stores them anew. Look at them then."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.support.monitor_log import recorded

from oven_core.protocol.events import Event
from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.widgets.decision_list import DecisionList
from oven_tui.widgets.header import RunFacts

PICTURES = Path(__file__).parent / "pictures"


def compare(name: str, svg: str) -> None:
    """Equal but for the ids that Rich draws from the content; fonts and clipping make no difference worth storing."""
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    svg = re.sub(r"@font-face \{.*?\}\s*|<clipPath.*?</clipPath>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (clip-path|textLength|shape-rendering)="[^"]*"', "", svg).replace("&#160;", "\u00a0")
    path = PICTURES / f"{name}.svg"
    if os.environ.get("OVEN_UPDATE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        path.write_text(svg)
        return
    if svg != path.read_text():
        seen = path.with_suffix(".seen.svg")
        seen.write_text(svg)
        pytest.fail(f"{seen} differs from {path.name}; if it should, run the test with OVEN_UPDATE_PICTURES=1")


@pytest.mark.parametrize(("size", "theme"), [((80, 24), "dark"), ((80, 24), "light"), ((160, 50), "dark")])
async def test_the_dashboard(size: tuple[int, int], theme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await picture(f"dashboard-{theme}-{size[0]}x{size[1]}", recorded(), size, theme, monkeypatch)


async def test_the_ballot_page_matches_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    await picture("ballot-80x24", recorded(), (80, 24), "dark", monkeypatch, "g", "j", "enter")


async def picture(
    name: str, events: list[Event], size: tuple[int, int], theme: str, monkeypatch: pytest.MonkeyPatch, *keys: str
) -> None:
    monkeypatch.setattr(MonitorApp, "silent_s", lambda self: 2.0)  # the clock is no part of the picture
    app = MonitorApp(
        RunFacts("demo", "grpo", "drill:lr-low", "everything was made slow"),
        appearance=Appearance(light=theme == "light"),
    )
    async with app.run_test(size=size) as pilot:
        app.set_link("connected", "")
        app.add_events(events)
        app.paint()
        app.query_one(DecisionList).focus()
        await pilot.press(*keys)
        await pilot.pause()
        while not app.screen_stack[0].query("FooterKey"):  # the footer is made anew after the focus has moved
            await pilot.pause()
        compare(name, app.export_screenshot(simplify=True))

"""A panel takes a widget and an entry: the application lays it out, hands it the view and has it redrawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.mesh_log import Log
from tests.support.monitor_log import recorded

from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home
from oven_tui.app import PANELS, TALL_ROWS, MonitorApp
from oven_tui.model.cell_text import TextRun, row
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base_widgets import Lines, Panel
from oven_tui.widgets.header import RunFacts


class Counts(Lines, Panel):
    """How many decisions there are, in one row."""

    DEFAULT_CSS = "Counts { height: 1; }"

    def __init__(self, view: MonitorView) -> None:
        super().__init__()
        self.view = view

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        return [row(width, [(f"counted {self.view.run.adopted} adopted", "text")])][:height]


async def test_a_panel_is_shown_redrawn_and_frozen_with_the_others() -> None:
    app = MonitorApp(RunFacts("demo"), panels=(*PANELS, Counts))
    async with app.run_test(size=(80, 30)) as pilot:
        await pilot.pause()
        assert "counted\u00a00\u00a0adopted" in shown(app)
        app.action_freeze()
        app.add_events(recorded())
        app.paint()
        await pilot.pause()
        assert "counted\u00a00\u00a0adopted" in shown(app)
        app.action_freeze()
        await pilot.pause()
        assert app.view.run.adopted > 0
        assert f"counted\u00a0{app.view.run.adopted}\u00a0adopted" in shown(app)


async def test_a_monitor_without_a_panel_leaves_its_area_empty() -> None:
    app = MonitorApp(RunFacts("demo"), panels=PANELS[2:])
    async with app.run_test(size=(80, 30)):
        assert not app.query("#agents")
        app.add_events(recorded())
        app.paint()


@pytest.mark.parametrize("rows", [24, 32, 34, 38, 44, 50, 62])
async def test_every_panel_is_on_the_screen(rows: int) -> None:
    names = [f"agent-{number}" for number in range(14)]
    log = Log.running(*names)
    log.tick(1, **{"time/step": 0.6, "time/train": 0.5, "tokens_per_s": 4500.0})
    log.propose(names[0], 2.0, rationale="gradients agree with their running mean " * 3)
    for name in names[1:]:
        log.vote(name, "for", rationale="the held-out reading is flat " * 3)
    app = MonitorApp(RunFacts("demo"))
    async with app.run_test(size=(116, rows)) as pilot:
        app.add_events(log.events)
        for _ in range(2):  # the panels' heights change after the first paint
            app.paint()
            await pilot.pause()
        lists = app.query_one("#lists").region
        for panel in ("#agents", "#decisions", "#ballot", *(["#machine"] if rows >= TALL_ROWS else [])):
            region = app.query_one(panel).region
            assert region.height > 1 and region.bottom <= lists.bottom, panel


async def test_the_header_shows_what_the_learner_does_before_its_run_starts(tmp_path: Path) -> None:
    folder = Home(tmp_path).create("demo", "grpo")
    (folder.logs / "learner.log").write_text("2026-01-01 INFO preparing: warm-up: step 122 of 300\n")
    app = MonitorApp(RunFacts("demo"), LocalRun(folder))
    async with app.run_test(size=(80, 30)) as pilot:
        app.update_header()
        await pilot.pause()
        assert "preparing:\u00a0warm-up:\u00a0step\u00a0122\u00a0of\u00a0300" in shown(app)
        app.add_events(recorded())
        app.paint()
        await pilot.pause()
        assert "preparing" not in shown(app)


def shown(app: MonitorApp) -> str:
    return app.export_screenshot(simplify=True).replace("&#160;", "\u00a0")

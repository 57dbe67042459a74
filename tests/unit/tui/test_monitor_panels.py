"""A panel takes a widget and an entry: the application lays it out, hands it the view and has it redrawn."""

from __future__ import annotations

from tests.support.monitor_log import recorded

from oven_tui.app import PANELS, MonitorApp
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.cell_text import row
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


def shown(app: MonitorApp) -> str:
    return app.export_screenshot(simplify=True).replace("&#160;", "\u00a0")

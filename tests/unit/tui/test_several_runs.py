"""The list of runs and the overlay under their keys, without a terminal; storms of sizes and of events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.monitor_log import ended, recorded
from tests.support.recorded_runs import write_run
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Footer

from oven_core.protocol.events import Event
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home
from oven_runs.home.run_rows import RunRows
from oven_tui.app import MonitorApp
from oven_tui.apps.overlay_app import OverlayApp
from oven_tui.apps.play_app import PlayApp
from oven_tui.apps.runs_app import RemoteRunRow, RunsApp, RunSelection
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.overlaid_runs import RunAxis
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.header import RunFacts
from oven_tui.widgets.overlay_chart import OverlayChart
from oven_tui.widgets.run_list import RunList

EVENTS, ENDED = recorded(), ended()


def folded(events: list[Event]) -> MonitorView:
    view = MonitorView()
    for event in events:
        view.feed(event)
    return view


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    made = Home(tmp_path_factory.mktemp("home"))
    write_run(made, "first", ENDED, created="2026-01-01T00:00:00+00:00")
    write_run(made, "second", EVENTS, created="2026-01-02T00:00:00+00:00", drill="everything was made slow")
    write_run(made, "third", EVENTS[:60], created="2026-01-03T00:00:00+00:00", ended="failed")
    return made


@asynccontextmanager
async def opened(app: App[Any], size: tuple[int, int] = (120, 35)) -> AsyncIterator[Pilot[Any]]:
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.screen.query(Footer))
        yield pilot


async def until(pilot: Pilot[Any], true: Any) -> None:
    async with asyncio.timeout(60):
        await pilot.pause()
        while not true():
            await pilot.pause(0.01)


def text(app: App[Any]) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_the_list_is_newest_first_opens_runs_and_overlays_marked_ones(home: Home) -> None:
    app = RunsApp(RunRows(home))
    async with opened(app) as pilot:
        await until(pilot, lambda: all(row.is_complete for row in app.query_one(RunList).shown_rows))
        lines = [row for row in text(app).splitlines() if any(name in row for name in ("first", "second", "third"))]
        assert [next(n for n in ("first", "second", "third") if n in row) for row in lines[:3]] == [
            "third",
            "second",
            "first",
        ]
        for word in ("3 runs", "✗ failed", "■ completed", "eval/accuracy", "240/240 100%", "1 malformed"):
            assert word in text(app), word
        await pilot.press("slash", *"run:sec", "enter")
        await until(pilot, lambda: "first" not in text(app))
        await pilot.press("escape", "space", "j", "space")
        assert len(app.query_one(RunList).marked) == 2
        await pilot.press("question_mark")
        await until(
            pilot, lambda: isinstance(app.screen, HelpScreen) and "Mark two to four runs for an overlay" in text(app)
        )
        app.show_rows()  # new rows come while a page is over the list
        await pilot.press("escape", "enter")
    assert app.return_value == RunSelection(("second", "first"), False, ("second", "first"))


async def test_a_run_elsewhere_is_listed_first_and_says_when_it_is_not_reached(home: Home) -> None:
    remote_row = RemoteRunRow(LocalRun(home.find("first")), folded(EVENTS))  # no server answers for it
    app = RunsApp(RunRows(home), remote_row=remote_row)
    async with opened(app, (200, 30)) as pilot:
        await until(pilot, lambda: "unreachable" in text(app))
        assert app.query_one(RunList).shown_rows[0].location and "138/240" in text(app)


async def test_an_overlay_has_every_runs_curve_and_says_what_one_has_not_measured() -> None:
    app = OverlayApp((), names=("one", "two"))
    async with opened(app, (160, 45)) as pilot:
        app.add_events(0, EVENTS)
        app.add_events(1, [event for event in ENDED if "observation" not in event.subject])
        app.set_link(1, "down", "")
        app.paint()
        await until(pilot, lambda: "not measured" in text(app))
        for word in ("● one", "■ two", "eval/accuracy", "step 0", "completed"):
            assert word in text(app), word
        kinds = {kind for chart in app.query(OverlayChart) for row in chart.drawn_rows for _, kind in row}
        assert app.runs[0].symbol[1] in kinds
        await pilot.press("x", "plus", "m", "M", "ctrl+t")
        await until(pilot, lambda: "tick " in text(app))


def test_by_step_the_steps_before_a_rollback_are_omitted() -> None:
    view = folded(EVENTS)  # it goes 15 steps back
    by_step, by_tick = RunAxis(view, "step"), RunAxis(view, "tick")
    assert by_step.end == view.run.step < by_tick.end == view.run.tick
    columns = by_step.columns(view, "reward", 0, view.run.step, 400)
    assert [column.key for column in columns] == sorted({column.key for column in columns})
    assert len(columns) == view.run.step
    assert len(by_tick.columns(view, "reward", 0, view.run.tick, 400)) == view.series["reward"].count
    assert by_step.columns(view, "no such metric", 0, 10, 10) == []


SIZES = [(random.Random(7).randint(40, 300), random.Random(n).randint(12, 100)) for n in range(2)]


@pytest.mark.parametrize("make", ["monitor", "runs", "overlay", "play"])
async def test_many_resizes_end_with_a_complete_screen(make: str, home: Home) -> None:
    folder = home.find("second")
    apps: dict[str, Callable[[], App[Any]]] = {
        "monitor": lambda: MonitorApp(RunFacts("demo")),
        "runs": lambda: RunsApp(RunRows(home)),
        "overlay": lambda: OverlayApp((), names=("one", "two", "three", "four")),
        "play": lambda: PlayApp(RunFacts("demo"), folder),
    }
    app = apps[make]()
    async with opened(app) as pilot:
        if isinstance(app, MonitorApp) and make == "monitor":
            app.add_events(EVENTS)
        if isinstance(app, OverlayApp):
            app.add_events(0, EVENTS)
            app.add_events(3, ENDED)
        for size in [(40, 12), (300, 100), *SIZES, (38, 9), (8, 3), (39, 20)]:
            await pilot.resize_terminal(*size)
        await until(pilot, lambda: "39x20 cells are too few" in text(app))
        await pilot.press("enter", "slash", "m", "question_mark")  # none of them reaches what lies under it
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: {strip.cell_length for strip in app.screen._compositor.render_strips()} == {80})
        assert len(app.screen._compositor.render_strips()) == 24


async def test_a_burst_of_ten_thousand_events_with_noise_is_drawn() -> None:
    last = EVENTS[-1]
    noise = [b"", b"{", b"[]", b'{"type":"Vote"}', b"\xff" * 300, b'{"v":1,"type":"Observation","tick":"x"}', b"null"]
    burst = [
        Event.read(last.seq + n, ("oven.r.vote.lr", "oven.r.observation", "oven.r.x")[n % 3], noise[n % 7], last.time)
        for n in range(1, 10_001)
    ]
    app = MonitorApp(RunFacts("demo"))
    async with opened(app) as pilot:
        app.add_events(EVENTS)
        app.add_events(burst)
        await until(pilot, lambda: "10001 malformed" in text(app))
        assert app.view.run.seq == burst[-1].seq


def test_a_log_cut_in_half_is_shown_as_far_as_it_goes_and_the_remedy_named(tmp_path: Path) -> None:
    from tests.unit.tui.test_player import reading

    from oven_tui.recording.log_reader import FullLog, ReadFailure

    folder = write_run(Home(tmp_path), "cut", EVENTS)
    data = folder.export.read_bytes()
    folder.export.write_bytes(data[: len(data) // 2])
    frames = reading(folder.path)
    whole, failed = frames[-2:]
    assert isinstance(whole, FullLog) and whole.state.seq > 50 and isinstance(failed, ReadFailure)
    assert "the line is truncated" in failed.reason and "restore it from a backup" in failed.reason

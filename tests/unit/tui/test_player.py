"""A recorded run that is played: at any event the view is what the live monitor's was there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.support.monitor_log import recorded
from tests.support.recorded_runs import write_run

from oven_controller.importing.rows import Row
from oven_controller.importing.run_writer import StoredRows
from oven_controller.importing.run_writer import write_log as write_imported
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import Home, RunFolder
from oven_tui.apps.play_app import PlayApp
from oven_tui.model.monitor_view import MonitorView
from oven_tui.recording import log_reader
from oven_tui.recording.log_reader import Checkpoint, Frame, FullLog, read_frames
from oven_tui.recording.player import Player
from oven_tui.widgets.header import RunFacts


def plain(value: Any) -> Any:
    """All that a view holds, by its value: two views that show the same have the same."""
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [plain(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, dict):
        return [(plain(key), plain(field)) for key, field in value.items()]
    if isinstance(value, list | tuple) or type(value).__name__ == "deque":
        return [plain(part) for part in value]
    if type(value).__module__.startswith("oven_"):
        if hasattr(value, "buckets"):
            value.buckets  # noqa: B018 (what waits is put where it belongs)
        return type(value).__name__, plain({k: v for k, v in sorted(vars(value).items()) if k != "_drawn"})
    return repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


@cache
def verified(path: Path) -> list[Event]:
    return list(map(Keyring().verify, exported_events(RunFolder(path))))


def live(folder: RunFolder, seq: int) -> MonitorView:
    """The view of a live monitor that has read so far."""
    view = MonitorView()
    for event in verified(folder.path)[:seq]:
        view.feed(event)
    return view


@cache
def reading(path: Path, checkpoints: int = 0) -> list[Frame]:
    """All frames of a log."""
    return list(read_frames(RunFolder(path), checkpoints=checkpoints))


def played(folder: RunFolder) -> Player:
    player = Player(folder)
    for frame in reading(folder.path, 12):
        player.add_frame(frame)
    return player


def imported(home: Home) -> RunFolder:
    """A run made of another program's rows, resumed once."""
    rows = [Row(step, {"loss": 4 / step, "lr": 1e-3}, 1_000.0 + step) for step in (*range(1, 90), *range(60, 120))]
    folder = home.create("imported", "imported")
    with StoredRows(rows, modified_at=0.0) as imported_rows:
        write_imported(folder, imported_rows)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunFolder]]:
    home = Home(tmp_path_factory.mktemp("home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reader, "CHUNK_EVENTS", 7)  # short logs with many checkpoints
        yield {
            "recorded": write_run(home, "recorded", recorded()),
            "imported": imported(home),
        }


GOES = st.lists(
    st.tuples(st.sampled_from(["step", "tick", "seq", "decision", "end", "play", "forward"]), st.integers(-3, 500)),
    max_size=5,
)


@pytest.mark.parametrize("name", ["recorded", "imported"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(goes=GOES)
def test_wherever_it_goes_it_shows_what_the_live_monitor_showed(
    folders: dict[str, RunFolder], name: str, goes: list[tuple[str, int]]
) -> None:
    player = played(folders[name])
    for what, number in goes:
        match what:
            case "play":
                player.speed = 16.0
                player.play(abs(number) / 10)
            case "forward":
                player.replay_next()
            case "end":
                list(player.to_end())
            case "decision":
                list(player.to_decision(1 if number > 0 else -1))
            case _:
                list(getattr(player, f"to_{what}")(max(0, number)))
        assert plain(player.view) == plain(live(folders[name], player.view.run.seq))


def test_a_position_is_the_first_event_of_its_step_tick_or_decision(folders: dict[str, RunFolder]) -> None:
    player = played(folders["recorded"])
    events = list(exported_events(folders["recorded"]))
    decisions = [event.seq for event in events if isinstance(event.body, Decision)]
    assert [d.seq for d in player.decisions] == decisions and player.log_end[0] == events[-1].seq
    list(player.to_seq(0))
    for seq in decisions:
        list(player.to_decision(1))
        assert player.view.run.seq == seq
    for seq in reversed(decisions[:-1]):
        list(player.to_decision(-1))
        assert player.view.run.seq == seq
    for step in (100, 3, 42):
        list(player.to_step(step))
        assert player.view.run.step == step
    list(player.to_end())
    assert player.is_at_end and player.play(1e6) == 0


def test_checkpoints_hold_the_decisions_and_the_end_is_whole(folders: dict[str, RunFolder]) -> None:
    frames = reading(folders["recorded"].path, 12)
    assert sum(isinstance(frame, Checkpoint) for frame in frames) > 8
    whole = frames[-1]
    assert isinstance(whole, FullLog) and plain(whole.state.view) == plain(live(folders["recorded"], 10**9))


def test_a_log_that_is_cut_is_played_to_where_it_is_cut(tmp_path: Path) -> None:
    folder = write_run(Home(tmp_path), "cut", recorded())
    data = folder.export.read_bytes()
    folder.export.write_bytes(data[: len(data) // 2])
    player = played(folder)
    list(player.to_end())
    assert plain(player.view) == plain(live_until_cut(folder))


def live_until_cut(folder: RunFolder) -> MonitorView:
    view = MonitorView()
    lines = folder.export.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    folder.export.write_bytes(b"".join(whole))
    for event in exported_events(folder):
        view.feed(event)
    return view


async def test_the_keys_of_playing(folders: dict[str, RunFolder]) -> None:
    app = PlayApp(RunFacts("recorded"), folders["recorded"], speed=7)
    async with app.run_test(size=(120, 35)) as pilot:

        async def until(true: Callable[[], object]) -> None:
            async with asyncio.timeout(60):
                while not true():
                    await pilot.pause(0.01)

        await until(lambda: app.player.is_fully_read and app.view.run.started is not None)
        await pilot.press("space")
        assert not app.playing and app.player.speed == 8.0
        await pilot.press("t", "4", "2", "enter")
        await until(lambda: app.view.run.step == 42)
        first = app.player.decisions[0].seq
        await pilot.press("0", "n")
        await until(lambda: app.view.run.seq == first)
        await pilot.press("right", "right", "left")
        await until(lambda: app.view.run.tick == app.player.decisions[0].tick + 1)
        await pilot.press("greater_than_sign", "comma", "end")
        await until(lambda: app.player.is_at_end)
        assert plain(app.view) == plain(live(folders["recorded"], 10**9)) and app.shown is app.view
        await pilot.press("space")
        await until(lambda: app.playing and app.view.run.seq < 50)

"""Opening a long log: the preview, then all of it, verified in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.monitor_log import ended, recorded
from tests.support.recorded_runs import write_run
from tests.unit.tui.test_player import plain

from oven_bench.performance.example_run import LongLog
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import LogFile, exported_events, offset_after
from oven_runs.home.run_folder import Home, RunFolder
from oven_tui import log_feed as feeds
from oven_tui.log_feed import LogFeed
from oven_tui.model.monitor_view import MonitorView
from oven_tui.recording import log_opener
from oven_tui.recording.log_opener import LogOpener
from oven_tui.recording.log_reader import (
    Frame,
    FullLog,
    Preview,
    Progress,
    ReadFailure,
    ReplayState,
    build_preview,
    read_frames,
)

EVENTS = 700


@pytest.fixture
def signed(tmp_path: Path) -> RunFolder:
    folder = Home(tmp_path / "home").create("long", "bench")
    LongLog(folder).write(EVENTS)
    return folder


def folded(folder: RunFolder) -> ReplayState:
    *_, whole = read_frames(folder)
    assert isinstance(whole, FullLog)
    return whole.state


def test_a_forged_event_counts_for_nothing_once_all_is_checked(signed: RunFolder) -> None:
    lines = signed.export.read_bytes().splitlines(keepends=True)
    index = next(n for n, line in enumerate(lines) if b'"type": "Decision"' in line)
    lines[index] = lines[index].replace(b"three agents of three", b"nobody but an attacker")
    signed.export.write_bytes(b"".join(lines))
    fold = folded(signed)
    assert fold.view.run.malformed == 1
    assert fold.view.run.adopted == LongLog.decisions(EVENTS) - 1
    assert not any("attacker" in repr(entry) for entry in fold.view.entries)


def test_a_preview_shows_the_beginning_and_the_end_and_is_marked_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("HEAD_EVENTS", 30), ("TAIL_BYTES", 20_000), ("WINDOW_BYTES", 4000), ("SAMPLE_POSITIONS", 40)):
        monkeypatch.setattr(f"oven_tui.recording.log_reader.{name}", size)
    folder = Home(tmp_path).create("long", "bench")
    LongLog(folder).write(3000)
    view = build_preview(folder)
    assert view.is_preview and view.run.started is not None and view.agents == ["curriculum", "lr", "prior"]
    assert (view.run.seq, view.run.step) == (3000, LongLog.last_step(3000))
    count = view.series["reward"].count
    assert 100 < count < LongLog.last_step(3000)  # samples
    ticks = [bucket.key for bucket in view.series["reward"].buckets]
    assert max(b - a for a, b in pairwise(ticks)) < 100  # from everywhere


class Shown:
    """What a monitor is told to show."""

    def __init__(self) -> None:
        self.views: list[MonitorView] = []
        self.links: list[str] = []
        self.faults: list[str] = []
        self.changed = asyncio.Event()

    def show(self, view: MonitorView) -> None:
        self.views.append(view)
        self.changed.set()

    def take(self, events: list[Event]) -> None:
        for event in events:
            self.views[-1].feed(event)
        self.changed.set()

    def say(self, link: str, detail: str) -> None:
        self.links.append(link)
        self.faults += [detail] if link == "unreadable" else []
        self.changed.set()

    async def until(self, link: str) -> None:
        async with asyncio.timeout(60):
            while self.links[-1:] != [link]:
                self.changed.clear()
                await self.changed.wait()


async def test_a_long_log_is_shown_as_a_preview_and_then_verified(
    signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_tui.recording.log_reader.LONG_BYTES", 1000)
    shown = Shown()
    task = asyncio.create_task(LogFeed(LocalRun(signed), shown.take, shown.say, shown.show).run())
    try:
        await shown.until("down")
    finally:
        task.cancel()
    first, last = shown.views
    assert first.is_preview and not last.is_preview and "checking while down" in shown.links
    assert last.run.adopted == LongLog.decisions(EVENTS) and last.run.seq == EVENTS


async def test_a_damaged_long_log_is_read_once_and_its_fault_said(
    signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_tui.recording.log_reader.LONG_BYTES", 1000)
    monkeypatch.setattr(feeds, "POLL_S", 0.0)
    data = signed.export.read_bytes()
    signed.export.write_bytes(data[: len(data) // 2])
    shown, readings = Shown(), 0

    async def fails(*_: object, **__: object) -> AsyncGenerator[Frame]:
        nonlocal readings
        readings += 1
        yield ReadFailure("line 9: the line is truncated")

    monkeypatch.setattr(log_opener, "stream_frames", fails)
    task = asyncio.create_task(LogFeed(LocalRun(signed), shown.take, shown.say, shown.show).run())
    try:
        async with asyncio.timeout(60):
            while len(shown.faults) < 5:
                shown.changed.clear()
                await shown.changed.wait()
    finally:
        task.cancel()
    assert readings == 1 and set(shown.faults) == {"line 9: the line is truncated"}


async def test_what_comes_while_a_log_is_checked_is_in_both_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(Home(tmp_path), "r", recorded())
    events = list(exported_events(folder))
    old, new = events[:100], events[100:]
    go_on = asyncio.Event()

    def fold(upto: list[Event]) -> ReplayState:
        made = ReplayState(MonitorView(), Keyring())
        for event in upto:
            made.view.feed(made.keyring.verify(event))
        return made

    async def coming(*_: object, **__: object) -> AsyncGenerator[Frame]:
        yield Preview(fold(old).view)
        yield Progress(0.5)
        await go_on.wait()
        yield FullLog(fold(events[:110]))  # the file went on growing

    monkeypatch.setattr(log_opener, "stream_frames", coming)
    shown = Shown()
    reader = LogOpener(folder, lambda view, _keyring: shown.show(view), lambda _share: None)
    await reader.start(growing=True)
    assert shown.views[0].run.seq == 100 and reader.is_reading
    reader.add(new)
    go_on.set()
    await reader.wait()
    assert plain(shown.views[1]) == plain(fold(events).view)


def test_the_log_behind_an_event_is_found_without_reading_it_all(tmp_path: Path) -> None:
    folder = write_run(Home(tmp_path), "r", ended())
    events = list(exported_events(folder))
    for seq in (0, 1, 57, len(events) - 1, len(events)):
        rest = LogFile(folder, offset=offset_after(folder, seq), seq=seq)
        assert [event.seq for event in rest] == [event.seq for event in events[seq:]]
    assert offset_after(folder, len(events) + 5) == folder.export.stat().st_size

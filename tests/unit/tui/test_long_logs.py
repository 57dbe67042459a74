"""A long log that is opened: the preview, all of it checked behind, and the cache, which holds for the same bytes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pickle
import zlib
from collections.abc import AsyncGenerator, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.monitor_log import ended, recorded
from tests.support.recorded_runs import write_run
from tests.unit.tui.test_player import plain

from oven_bench.performance.long_log import LongLog
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import LogFile, exported, offset_behind
from oven_runs.home.run_folder import Home, RunFolder
from oven_tui import feed as feeds
from oven_tui.feed import Feed
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past import cache, opening
from oven_tui.past.fold import Fold, Folding
from oven_tui.past.frames import Failed, Frame, Preview, Progress, Whole
from oven_tui.past.opening import Opening
from oven_tui.past.preview import preview

EVENTS = 700


@pytest.fixture
def signed(tmp_path: Path) -> RunFolder:
    folder = Home(tmp_path / "home").create("long", "bench")
    LongLog(folder).write(EVENTS)
    return folder


def folded(folder: RunFolder, begin: Fold | None = None, digest: hashlib.blake2b | None = None) -> Folding:
    folding = Folding(folder, begin, digest=digest or hashlib.blake2b())
    for _ in folding:
        pass
    return folding


def saved(folder: RunFolder) -> Fold:
    folding = folded(folder)
    assert folding.begin is not None
    cache.save(folder, folding.begin, folding.digest)
    return folding.begin


def test_the_cache_gives_the_same_fold(signed: RunFolder) -> None:
    fold = saved(signed)
    found = cache.load(signed)
    assert found is not None
    assert plain(found[0].view) == plain(fold.view) and found[0].offset == signed.export.stat().st_size
    assert (signed.path / cache.NAME).stat().st_mode & 0o077 == 0


def test_a_log_that_grew_is_folded_on_from_the_cache(signed: RunFolder) -> None:
    whole = signed.export.read_bytes()
    signed.export.write_bytes(whole[: offset_behind(signed, 400)])
    saved(signed)
    signed.export.write_bytes(whole)
    found = cache.load(signed)
    assert found is not None and found[0].seq == 400
    resumed, anew = folded(signed, *found), folded(signed)
    assert resumed.begin is not None and anew.begin is not None
    assert plain(resumed.begin.view) == plain(anew.begin.view)
    assert resumed.digest.digest() == anew.digest.digest() == hashlib.blake2b(whole).digest()


def _other_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


class Trap:
    """What makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def _trap(folder: RunFolder) -> None:
    data = (folder.path / cache.NAME).read_bytes()
    head = data[cache.MAC_BYTES :].partition(b"\n")[0]
    trap = zlib.compress(pickle.dumps(Trap(folder.path / "sprung")))
    (folder.path / cache.NAME).write_bytes(data[: cache.MAC_BYTES] + head + b"\n" + trap)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: _other_byte(folder.export),
        lambda folder: folder.export.write_bytes(folder.export.read_bytes()[:-9]),
        lambda folder: _other_byte(folder.path / cache.NAME),
        lambda folder: (folder.path / cache.NAME).write_bytes(b""),
        lambda folder: (folder.path / cache.NAME).unlink(),
        lambda folder: (folder.path.parent.parent / "cache" / cache.KEY).write_text("00" * 32),
        lambda folder: (folder.path.parent.parent / "cache" / cache.KEY).chmod(0o644),
        lambda folder: (folder.path.parent.parent / "cache" / cache.KEY).unlink(),
        _trap,
    ],
)
def test_a_cache_of_other_bytes_or_of_somebody_else_is_none(
    signed: RunFolder, spoil: Callable[[RunFolder], object]
) -> None:
    saved(signed)
    spoil(signed)
    assert cache.load(signed) is None
    assert not (signed.path / "sprung").exists()


def test_a_cache_of_other_code_is_none(signed: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(signed)
    monkeypatch.setattr(cache, "code", lambda: "another")
    assert cache.load(signed) is None


def test_a_forged_event_counts_for_nothing_once_all_is_checked(signed: RunFolder) -> None:
    lines = signed.export.read_bytes().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if b'"type": "Decision"' in line)
    lines[place] = lines[place].replace(b"three agents of three", b"nobody but an attacker")
    signed.export.write_bytes(b"".join(lines))
    fold = folded(signed).begin
    assert fold is not None and fold.view.run.malformed == 1
    assert fold.view.run.adopted == LongLog.decided(EVENTS) - 1
    assert not any("attacker" in repr(entry) for entry in fold.view.entries)


def test_a_preview_has_the_beginning_the_end_and_says_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("HEAD_EVENTS", 30), ("TAIL", 20_000), ("WINDOW", 4000), ("PLACES", 40)):
        monkeypatch.setattr(f"oven_tui.past.preview.{name}", size)
    folder = Home(tmp_path).create("long", "bench")
    LongLog(folder).write(3000)
    view = preview(folder)
    assert view.preview and view.run.started is not None and view.agents == ["curriculum", "lr", "prior"]
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


async def test_a_long_log_is_read_by_a_process_and_shown_twice(
    signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_tui.past.reader.LONG_BYTES", 1000)
    shown = Shown()
    task = asyncio.create_task(Feed(LocalRun(signed), shown.take, shown.say, shown.show).run())
    try:
        await shown.until("down")
    finally:
        task.cancel()
    first, last = shown.views
    assert first.preview and not last.preview and "checking past" in shown.links
    assert last.run.adopted == LongLog.decided(EVENTS) and last.run.seq == EVENTS


async def test_a_damaged_long_log_is_read_once_and_its_fault_said(
    signed: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_tui.past.reader.LONG_BYTES", 1000)
    monkeypatch.setattr(feeds, "LOOK_S", 0.0)
    data = signed.export.read_bytes()
    signed.export.write_bytes(data[: len(data) // 2])
    shown, readings = Shown(), 0

    async def fails(*_: object, **__: object) -> AsyncGenerator[Frame]:
        nonlocal readings
        readings += 1
        yield Failed("line 9: the file is cut off")

    monkeypatch.setattr(opening, "frames", fails)
    task = asyncio.create_task(Feed(LocalRun(signed), shown.take, shown.say, shown.show).run())
    try:
        async with asyncio.timeout(60):
            while len(shown.faults) < 5:
                shown.changed.clear()
                await shown.changed.wait()
    finally:
        task.cancel()
    assert readings == 1 and set(shown.faults) == {"line 9: the file is cut off"}


async def test_what_comes_while_a_log_is_checked_is_in_both_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(Home(tmp_path), "r", recorded())
    events = list(exported(folder))
    old, new = events[:100], events[100:]
    go_on = asyncio.Event()

    def fold(upto: list[Event]) -> Fold:
        made = Fold(MonitorView(), Keyring())
        for event in upto:
            made.view.feed(made.keyring.verify(event))
        return made

    async def coming(*_: object, **__: object) -> AsyncGenerator[Frame]:
        yield Preview(fold(old).view)
        yield Progress(0.5)
        await go_on.wait()
        yield Whole(fold(events[:110]), cached=False)  # the file went on growing

    monkeypatch.setattr(opening, "frames", coming)
    shown = Shown()
    reader = Opening(folder, lambda view, _keyring: shown.show(view), lambda _share: None)
    await reader.begin(growing=True)
    assert shown.views[0].run.seq == 100 and reader.under_way
    reader.hear(new)
    go_on.set()
    await reader.done()
    assert plain(shown.views[1]) == plain(fold(events).view)


def test_the_log_behind_an_event_is_found_without_reading_it_all(tmp_path: Path) -> None:
    folder = write_run(Home(tmp_path), "r", ended())
    events = list(exported(folder))
    for seq in (0, 1, 57, len(events) - 1, len(events)):
        rest = LogFile(folder, offset=offset_behind(folder, seq), seq=seq)
        assert [event.seq for event in rest] == [event.seq for event in events[seq:]]
    assert offset_behind(folder, len(events) + 5) == folder.export.stat().st_size

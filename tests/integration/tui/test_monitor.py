"""The monitor on a real server: what it reads, how it finds back, and how it leaves a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration import conftest
from tests.integration.conftest import Stack

from oven_bench.performance.monitor import Terminal
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_runs.access import log_recovery
from oven_runs.access.local_run import LocalRun
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded_server import EmbeddedServer
from oven_tui.apps.runs_app import RemoteRunRow
from oven_tui.log_feed import LogFeed
from oven_tui.model.monitor_view import MonitorView

LIMIT_S = 60
ON = Subjects("r")
LEAVES = b"\x1b[?1049l"
"""The way back from the alternate screen: the terminal is as it was."""


class Reader:
    """A feed, and what it told."""

    def __init__(self, folder: RunFolder) -> None:
        self.events: list[Event] = []
        self.links: list[str] = []
        self._changed = asyncio.Event()
        self._feed = LogFeed(LocalRun(folder), self._take, self._say)

    def _take(self, events: list[Event]) -> None:
        self.events += events
        self._changed.set()

    def _say(self, link: str, detail: str) -> None:
        self.links.append(link)
        self._changed.set()

    async def __aenter__(self) -> Reader:
        self._task = asyncio.create_task(self._feed.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def until(self, count: int = 0, link: str = "") -> None:
        """Until so many events were read, or this was the last word on the connection."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.events) < count or (link and self.links[-1:] != [link]):
                self._changed.clear()
                await self._changed.wait()

    def check(self, count: int) -> None:
        assert [event.seq for event in self.events] == list(range(1, count + 1))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = Home(tmp_path / "home").create("r", "toy")
    for role in ("admin", "monitor"):
        made.add_user(role, role)
    return made


@contextlib.asynccontextmanager
async def serving(folder: RunFolder, port: int | None = None) -> AsyncIterator[tuple[EmbeddedServer, Bus]]:
    server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log", port)
    folder.write_info(replace(folder.info(), url=server.url))
    try:
        admin = Credentials.load(folder.add_user("admin", "admin"))
        async with Bus.connect(server.url, admin) as bus:
            yield server, bus
    finally:
        await server.stop()


async def observe(bus: Bus, first: int, count: int = 1) -> None:
    for tick in range(first, first + count):
        seen = Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics={"loss": 1.0})
        await bus.append(ON.observation, seen.wire())


async def begin(bus: Bus) -> None:
    await streams.create(bus.jetstream, "r")
    await bus.append(ON.run, RunStarted(incarnation=1, n=0, recipe="toy").wire())


async def test_a_late_start_reads_the_whole_history_and_then_what_comes(folder: RunFolder) -> None:
    with folder.hold():
        async with serving(folder) as (_, bus):
            await begin(bus)
            await observe(bus, 1, 700)  # more than one answer of `history`
            await serve_history(bus, "r")
            async with Reader(folder) as reader:
                await reader.until(701, "connected")
                await observe(bus, 701, 5)
                await reader.until(706)
            reader.check(706)


async def test_without_a_mesh_the_stored_log_is_read_and_it_is_told(folder: RunFolder) -> None:
    with folder.hold():
        async with serving(folder) as (_, bus):
            await begin(bus)
            async with Reader(folder) as reader:
                await reader.until(1, "no mesh")
                await observe(bus, 1)
                await reader.until(2)
                await serve_history(bus, "r")
                await reader.until(link="connected")
            reader.check(2)


async def test_a_server_that_comes_back_elsewhere_is_found_again(folder: RunFolder) -> None:
    with folder.hold():
        async with Reader(folder) as reader:
            async with serving(folder) as (_, bus):
                await begin(bus)
                await serve_history(bus, "r")
                await reader.until(1, "connected")
            await reader.until(link="reconnecting")
            async with serving(folder) as (_, bus):  # on another port, with the same store
                await serve_history(bus, "r")
                await observe(bus, 1)
                await reader.until(2, "connected")
    reader.check(2)


async def test_a_run_that_is_over_is_read_from_its_export_and_followed_when_it_goes_on(folder: RunFolder) -> None:
    async with serving(folder) as (_, bus):
        await begin(bus)
        await observe(bus, 1, 3)
        await log_recovery.complete_log(bus, folder, print)
    async with Reader(folder) as reader:
        await reader.until(4, "down")
        with folder.hold():
            async with serving(folder) as (_, bus):
                await serve_history(bus, "r")
                await observe(bus, 4)
                await reader.until(5, "connected")
    reader.check(5)


async def test_a_run_that_was_killed_is_read_from_its_store(folder: RunFolder) -> None:
    async with serving(folder) as (_, bus):
        await begin(bus)
        await observe(bus, 1, 3)
    async with Reader(folder) as reader:
        await reader.until(4, "down")
    reader.check(4)


async def test_a_long_log_of_a_live_run_is_shown_at_once_and_then_checked_while_it_grows(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_tui.recording.log_reader.LONG_BYTES", 1000)
    views: list[MonitorView] = []
    changed, links = asyncio.Event(), list[str]()

    def take(events: list[Event]) -> None:
        for event in events:
            views[-1].feed(event)
        changed.set()

    def show(view: MonitorView) -> None:
        views.append(view)
        changed.set()

    def say(link: str, _detail: str) -> None:
        links.append(link)
        changed.set()

    async def until(true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not true():
                changed.clear()
                await changed.wait()

    with folder.hold():
        async with serving(folder) as (_, bus):
            await begin(bus)
            await observe(bus, 1, 300)
            with contextlib.closing(Mirror(folder.export)) as mirror:
                await log_recovery.copy_new_events(bus, "r", mirror)
            await serve_history(bus, "r")
            feed = asyncio.create_task(LogFeed(LocalRun(folder), take, say, show).run())
            await until(lambda: bool(views))
            await observe(bus, 301, 5)
            await until(lambda: len(views) > 1 and views[-1].run.seq == 306 and links[-1] == "connected")
            await observe(bus, 306, 5)
            await until(lambda: views[-1].run.seq == 311)
            feed.cancel()
            listed = RemoteRunRow(LocalRun(folder), MonitorView())  # as a run on another machine is listed
            following = asyncio.create_task(listed.follow(changed.set))
            await until(lambda: listed.row().step == 310)
            assert listed.row().status == "running" and not listed.row().fault and listed.row().location
            following.cancel()
    assert [view.is_preview for view in views] == [True, False] and "checking" in links
    assert views[-1].series["loss"].count == 310


async def test_a_run_without_a_log_says_so_and_goes_on_trying(folder: RunFolder) -> None:
    async with Reader(folder) as reader:
        await reader.until(link="unreadable")


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.install(conftest.MONITOR)
    return stack


MONITOR = [sys.executable, "-P", "-m", "oven_controller.stack.run_process", "monitor"]


@pytest.fixture
async def held(stack: Stack) -> AsyncIterator[RunFolder]:
    """A run of the stand-ins that waits to be told to end."""
    process = await asyncio.to_thread(stack.up, "r", "--set", "recipe_options.mode=wait", until="step")
    yield stack.run_folder("r")
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(stack.end_of, process)


def monitored(stack: Stack) -> dict[str, str]:
    return stack.env | {"OVEN_RUN_DIR": str(stack.run_folder("r").path), "TERM": "xterm-256color"}


async def test_in_a_terminal_it_shows_the_run_and_closing_it_leaves_the_run_alone(
    stack: Stack, held: RunFolder
) -> None:
    terminal = Terminal(MONITOR, monitored(stack))
    try:
        await terminal.until(b"eval/accuracy")
        await terminal.until(b"toy")
        terminal.press(b"q")
        await terminal.until(LEAVES)
        await terminal.until(b"run r continues; ")
        assert await asyncio.to_thread(terminal.process.wait, LIMIT_S) == 0
    finally:
        await terminal.close()
    assert held.is_locked()
    assert stack.json("status", "r")["status"] == "running"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_it_and_gives_the_terminal_back(
    stack: Stack, held: RunFolder, number: signal.Signals
) -> None:
    terminal = Terminal(MONITOR, monitored(stack))
    try:
        await terminal.until(b"eval/accuracy")
        terminal.process.send_signal(number)
        await terminal.until(LEAVES)
        assert await asyncio.to_thread(terminal.process.wait, LIMIT_S) == 0
    finally:
        await terminal.close()
    assert held.is_locked()


async def test_it_ends_with_its_parent(stack: Stack, held: RunFolder) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    env = monitored(stack) | {"OVEN_PARENT_FD": str(reader)}
    terminal = Terminal(MONITOR, env, pass_fds=(reader,))
    os.close(reader)
    try:
        await terminal.until(b"eval/accuracy")
        os.close(writer)
        await terminal.until(LEAVES)
        assert await asyncio.to_thread(terminal.process.wait, LIMIT_S) == 0
    finally:
        await terminal.close()


async def test_it_ends_when_its_terminal_is_gone_without_a_signal(stack: Stack, held: RunFolder) -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(  # in a session of its own that the terminal does not belong to: no SIGHUP
        MONITOR, stdin=slave, stdout=slave, stderr=slave, env=monitored(stack), start_new_session=True
    )
    os.close(slave)
    try:
        await asyncio.to_thread(os.read, master, 64)  # it draws
        os.close(master)
        await asyncio.to_thread(process.wait, LIMIT_S)
    finally:
        process.kill()
        await asyncio.to_thread(process.wait, LIMIT_S)
    assert held.is_locked()

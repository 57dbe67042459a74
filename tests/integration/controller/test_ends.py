"""Whoever reads the log, or asks the bus, ends when told to: also where that comes together with an answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family

from oven_core.bus import nats_client, streams, watchdog
from oven_core.bus.connection import Bus
from oven_core.bus.nats_client import BusClient
from oven_core.errors import ConfigError
from oven_core.protocol.history_requests import HistoryRequest
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_runs.access.log_watch import LogWatch
from oven_runs.server.embedded_server import EmbeddedServer

ON = Subjects("r")
TIMES = 50


async def filled(bus: Bus) -> None:
    await streams.create(bus.jetstream, "r")
    await bus.append(ON.run, RunStarted(incarnation=1, n=0, recipe="x").wire())
    await serve_history(bus, "r")


async def head(bus: Bus) -> None:
    await bus.head("r")


async def history(bus: Bus) -> None:
    await bus.request(ON.history, HistoryRequest().wire())


async def to_the_head(bus: Bus) -> None:
    async for _ in bus.read("r", until=1):
        pass


async def flush(bus: Bus) -> None:
    await bus.flush()


def awaited(bus: Bus) -> list[asyncio.Future[object]]:
    """What nats-py waits for: answers and pongs."""
    return [future for future in (*bus.client._resp_map.values(), *bus.client._pongs) if not future.done()]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in nats_client.PRIVATE_NAMES.items() for name in names if hasattr(owner, name)],
)
async def test_a_nats_py_without_a_private_name_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.delattr(owner, name)
    nats_client.check_private_names.cache_clear()
    with pytest.raises(ConfigError, match=rf"nats-py [\d.]+ has no {name}, but .* install nats-py 2\.12 to 2\.16$"):
        BusClient()


@pytest.mark.parametrize("work", [head, history, to_the_head, flush])
async def test_cancellations_are_not_lost(server: EmbeddedServer, work: Callable[[Bus], Awaitable[None]]) -> None:
    """Each comes together with the server's answer, in the same turn of the event loop."""

    async def again_and_again(bus: Bus) -> None:
        while True:
            await work(bus)

    key = Credentials.load(server.folder.creds / "admin.nk")
    async with Bus.connect(server.url, key) as bus:
        await filled(bus)
        for _ in range(TIMES):
            task = asyncio.create_task(again_and_again(bus))
            while not (waiting := awaited(bus)):
                await asyncio.sleep(0)
            waiting[-1].add_done_callback(lambda _, task=task: task.cancel())  # type: ignore[misc]
            await asyncio.wait({task}, timeout=WAIT_S)
            assert task.cancelled(), "told once"


async def test_a_watch_ends_while_its_reader_asks_how_long_the_log_is(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a run that was quiet for a while: `up` hung there, now and then."""
    monkeypatch.setattr("oven_core.bus.log_reader.HEAD_CHECK_HEARTBEATS", 1)
    key = Credentials.load(server.folder.creds / "admin.nk")
    async with Bus.connect(server.url, key) as bus:
        await filled(bus)
        for _ in range(3):
            async with LogWatch(bus, "r", Keyring(), 1, lambda _: None, lambda _: None) as watch:
                await watch.wait_for(1)
                while not (waiting := awaited(bus)):
                    await asyncio.sleep(0.001)
                waiting[-1].add_done_callback(lambda _, task=watch.task: task.cancel())  # type: ignore[misc]
                await asyncio.wait({watch.task}, timeout=WAIT_S)
                assert watch.task.cancelled(), "told once"


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("frozen", [False, True], ids=["answering", "frozen"])
async def test_a_reconnect_that_swallows_its_cancellation_leaves_no_connection(
    server: EmbeddedServer, frozen: bool, times: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the socket is there in the turn in which the attempt is cancelled: it continues, and connects."""
    made, real = asyncio.Event(), BusClient._select_next_server  # noqa: SLF001

    async def swallowing(client: BusClient) -> None:
        await real(client)
        made.set()
        for _ in range(times):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    before = asyncio.all_tasks()
    bus = await Bus.open(server.url, Credentials.load(server.folder.creds / "admin.nk"))
    monkeypatch.setattr(BusClient, "_select_next_server", swallowing)
    watchdog.abort(bus.client)
    await asyncio.wait_for(made.wait(), WAIT_S)
    processes = family(server.child.pid)
    if frozen:
        for process in processes:
            process.suspend()
    try:
        async with asyncio.timeout(WAIT_S):
            await bus.abort()
    finally:
        for process in processes:
            process.resume()
    assert asyncio.all_tasks() == before and not bus.is_connected and not caplog.records
    open_connections = [c for c in psutil.Process().net_connections("tcp4") if c.raddr and c.raddr.port == server.port]
    assert not open_connections


@pytest.mark.e2e
@pytest.mark.parametrize(
    "third", [pytest.param([], marks=pytest.mark.slow, id="two"), pytest.param([signal.SIGTERM], id="three")]
)
def test_a_second_signal_ends_a_stack_that_hangs(stack: Stack, third: list[signal.Signals]) -> None:
    """Nobody reads what `up` prints, so it hangs in the line that says that it ends, or in one before that."""
    up = stack.up("hangs", "--set", "recipe_options.mode=wait", until="step   12/12")
    assert up.stdout is not None
    processes = family(up.pid)
    with open(f"/proc/{up.pid}/fd/1", "wb", buffering=0) as pipe:
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while pipe.write(b"." * 512) is not None:
                pass
    for number in [signal.SIGHUP, signal.SIGTERM, *third]:  # two of one number may be handled as one
        up.send_signal(number)
    # Two signals may reach two threads, and be handled in either order. An end in order would be 0.
    assert up.wait(WAIT_S) in (128 + signal.SIGTERM, 128 + signal.SIGHUP)
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert stack.run_folder("hangs").status() == "interrupted"

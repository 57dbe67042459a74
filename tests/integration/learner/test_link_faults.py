"""BusLink under faults that no server shows by itself: silence, refusals, words that are lost, fifty connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.learner.test_learner_link import client, decide, decision, keep_observing, off_loop, polled
from tests.support.learner_side import LIMIT_S, RUN, Server, serving, until

from oven_controller.bus.connection import Bus, Entry
from oven_controller.errors import BusError
from oven_controller.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_controller.protocol.names import Subjects, log_stream
from oven_controller.protocol.subjects import log_subjects
from oven_controller.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.link.bus_link import BATCH_FROM, BusLink

BATCH = 3 * BATCH_FROM
ON = Subjects(RUN)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


class Proxy:
    """TCP between the learner and its server. `hole` swallows all that its connections say from then on, and tells
    neither end, as when a cable is pulled."""

    def __init__(self, server: Server) -> None:
        self.made = 0
        self._server = server
        self._swallowing: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hole(self) -> None:
        for swallowing in self._swallowing:
            swallowing.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.made += 1
        swallowing = asyncio.Event()
        self._swallowing.append(swallowing)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            both = [
                asyncio.create_task(self._copy(reader, up_writer, swallowing)),
                asyncio.create_task(self._copy(up_reader, writer, swallowing)),
            ]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copying in both:
                    copying.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            up_writer.close()
            writer.close()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, swallowing: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not swallowing.is_set():
                    writer.write(data)
                    await writer.drain()


def through(proxy: Proxy, nats: Server, rate: list[float]) -> OvenClient:
    actuators = Actuators()
    actuators.scalar("rate", lambda: rate[0], lambda v: rate.__setitem__(0, v), low=0.1, high=10)
    return OvenClient(BusLink(proxy.url, RUN, Credentials.load(nats.creds("learner"))), actuators)


def link_of(learner: OvenClient) -> BusLink:
    assert isinstance(learner._link, BusLink)
    return learner._link


async def in_log(nats: Server) -> list[int]:
    """The number of every message of the learner, in the log's order."""
    return [body.n for body in await nats.bodies() if not isinstance(body, Decision)]  # type: ignore[attr-defined]


async def test_a_line_that_swallows_everything_is_given_up(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_learner.link.bus_link.TURN_S", 0.1)
    rate = [1.0]
    async with Proxy(nats) as proxy:
        learner = through(proxy, nats, rate)
        await off_loop(learner.start)
        stop = asyncio.Event()
        training = asyncio.create_task(keep_observing(learner, 1, stop))
        await until(lambda: learner.tick > 50)
        before = proxy.made
        proxy.hole()
        await until(lambda: proxy.made > before)
        async with nats.bus("mesh") as mesh:
            await decide(mesh, decision(1, value=2.0))
        await until(lambda: rate[0] == 2.0)
        stop.set()
        await training
        assert await off_loop(learner.close, "completed", timeout_s=30)
    numbers = await in_log(nats)
    assert numbers == list(range(1, len(numbers) + 1))
    receipts = [body for body in await nats.bodies() if isinstance(body, Receipt)]
    assert [(r.decision_id, r.status) for r in receipts] == [(decision(1).id, "applied")]


async def test_closing_while_the_server_is_frozen_leaves_no_task(nats: Server) -> None:
    """A task that is left is complained of on stderr whenever it is collected."""
    before = asyncio.all_tasks()
    async with nats.bus() as bus:
        for subject in log_subjects(RUN):
            await bus.subscribe(subject, ignored)
        await bus.flush()
        nats.freeze(True)
    assert asyncio.all_tasks() == before


async def ignored(_message: object) -> None: ...


async def test_fifty_connections_leave_nothing_behind(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other one is lost, the rest fall silent."""
    monkeypatch.setattr("oven_learner.link.bus_link.TURN_S", 0.05)
    monkeypatch.setattr("oven_learner.link.bus_link.RETRY_S", 0.01)
    me, loops, clients = psutil.Process(), list[asyncio.AbstractEventLoop](), list[Bus]()
    real = Bus.open

    async def remember(*args: Any, **kwargs: Any) -> Bus:
        bus = await real(*args, **kwargs)
        if kwargs.get("name") == "learner":
            loops.append(asyncio.get_running_loop())
            clients.append(bus)
        return bus

    monkeypatch.setattr(Bus, "open", remember)
    async with Proxy(nats) as proxy:
        learner = through(proxy, nats, [1.0])
        await off_loop(learner.start)

        def ours() -> int:
            """Sockets of this process that lead to the proxy."""
            port = int(proxy.url.rsplit(":", 1)[1])
            return sum(1 for c in me.net_connections("tcp4") if c.raddr and c.raddr.port == port)

        async def tasks() -> int:
            async def count() -> int:
                return len(asyncio.all_tasks())

            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(count(), loops[0])) - 1

        async def reading() -> bool:
            """Whether the newest connection is in full use."""
            return len(clients[-1].client._subs) >= 2

        async def settled() -> tuple[int, int]:
            async with asyncio.timeout(LIMIT_S):
                while not (clients[-1].connected and await reading()) or link_of(learner).unsent:
                    await asyncio.sleep(0.01)
            return await tasks(), ours()

        at_first = await settled()
        descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        for number in range(50):
            seen = len(clients)
            if number % 2:
                proxy.hole()
            else:
                transport = clients[-1].client._transport._io_writer.transport  # type: ignore[union-attr]
                loops[0].call_soon_threadsafe(transport.abort)
            learner.observe(number, {"loss": 1.0})
            await until(lambda seen=seen: len(clients) > seen)  # type: ignore[misc]
        at_last = await settled()
        assert at_last == at_first, "(tasks, sockets) of the link"
        if descriptors:
            # The proxy's own sockets to the server go when it has noticed.
            await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
        assert await off_loop(learner.close, "completed", timeout_s=30)
    assert await in_log(nats) == list(range(1, 53))


async def test_a_lost_acknowledgement_doubles_nothing_however_long_ago(
    nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log took it and the word was lost. Message ids stand in a header that says nothing to the server, as if it
    had forgotten them meanwhile."""
    lost: list[str] = []
    all_of, one_of = Bus.append_all, Bus.append

    async def append_all(bus: Bus, *args: Any, **kwargs: Any) -> int:
        taken = await all_of(bus, *args, **kwargs)
        if lost.count("batch") < 2:
            lost.append("batch")
            raise BusError("no word came back")
        return taken

    async def append(bus: Bus, *args: Any, **kwargs: Any) -> int:
        taken = await one_of(bus, *args, **kwargs)
        if lost.count("one") < 2:
            lost.append("one")
            raise BusError("no word came back")
        return taken

    monkeypatch.setattr("oven_learner.link.bus_link.RETRY_S", 0.01)
    for module in ("bus.connection", "protocol.events"):
        monkeypatch.setattr(f"oven_controller.{module}.MESSAGE_ID", "Some-Other-Id")
    monkeypatch.setattr(Bus, "append_all", append_all)
    monkeypatch.setattr(Bus, "append", append)
    learner = client(nats)
    await off_loop(learner.start)
    await until(lambda: not link_of(learner).unsent)  # the announcement goes alone
    step = 0
    while lost.count("batch") < 2:
        for _ in range(BATCH):
            step += 1
            learner.observe(step, {"loss": 1.0})
        await until(lambda: not link_of(learner).unsent)
    assert await off_loop(learner.close, "completed", timeout_s=30)
    assert sorted(lost) == ["batch", "batch", "one", "one"]
    assert await in_log(nats) == list(range(1, step + 3))


async def test_what_a_forger_says_in_the_learners_name_settles_nothing(
    nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing went out, and when the log is asked it holds something newer of this incarnation."""
    real, kept = Bus.append, list[str]()

    async def append(bus: Bus, subject: str, data: bytes, **kwargs: Any) -> int:
        if subject == ON.observation and not kept:
            kept.append(subject)
            forged = Observation(incarnation=1, n=10**6, tick=10**6, step=10**6, progress=0, metrics={})
            async with nats.bus() as admin:
                await real(admin, ON.observation, forged.wire(), message_id="1-1000000-0123456789abcdef")
            raise BusError("no word came back")
        return await real(bus, subject, data, **kwargs)

    monkeypatch.setattr("oven_learner.link.bus_link.RETRY_S", 0.01)
    monkeypatch.setattr(Bus, "append", append)
    learner = client(nats)
    await off_loop(learner.start)
    learner.observe(1, {"loss": 1.0})
    assert await off_loop(learner.close, "completed", timeout_s=30)
    assert kept and sorted(await in_log(nats)) == [1, 2, 3, 10**6]


async def test_a_batch_that_arrives_late_after_all_doubles_nothing(
    nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a connection that was given up, after the log was asked: then the log refuses the copy as a duplicate."""
    real, tries = Bus.append_all, list[str]()

    async def append_all(bus: Bus, entries: Sequence[Entry], batch: str, **kwargs: Any) -> int:
        tries.append(batch)
        if len(tries) == 1:
            await real(bus, entries[: BATCH_FROM // 2], "late", **{**kwargs, "traceparents": ()})
        return await real(bus, entries, batch, **kwargs)

    monkeypatch.setattr(Bus, "append_all", append_all)
    learner = client(nats)
    await off_loop(learner.start)
    for step in range(1, BATCH + 1):
        learner.observe(step, {"loss": 1.0})
    assert await off_loop(learner.close, "completed", timeout_s=30)
    assert tries
    assert await in_log(nats) == list(range(1, BATCH + 3))


async def test_a_full_log_stops_no_training_and_is_said_once(
    nats: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oven_learner.link.bus_link.RETRY_S", 0.01)
    monkeypatch.setattr("oven_learner.link.bus_link.RETRY_MOST_S", 0.01)
    refused: list[str] = []
    real = Bus._confirmed

    async def confirmed(bus: Bus, *args: Any) -> int:
        try:
            return await real(bus, *args)
        except BusError as error:
            refused.append(str(error))
            raise

    monkeypatch.setattr(Bus, "_confirmed", confirmed)
    learner = client(nats)
    await off_loop(learner.start)
    await until(lambda: not link_of(learner).unsent)
    async with nats.bus() as admin:
        config = (await admin.jetstream.stream_info(log_stream(RUN))).config
        config.max_bytes = 1024
        await admin.jetstream.update_stream(config)
        for step in range(1, 2 * BATCH + 1):
            learner.observe(step, {"loss": 1.0, "note": float(step)})
            learner.poll()
        await until(lambda: len(refused) > 20)
        assert all("10077" in text for text in refused[:20]), refused[:3]
        config.max_bytes = -1
        await admin.jetstream.update_stream(config)
    await until(lambda: not link_of(learner).unsent)
    assert await off_loop(learner.close, "completed", timeout_s=30)
    assert await in_log(nats) == list(range(1, 2 * BATCH + 3))
    said = [record.getMessage() for record in caplog.records if record.name == "oven.learner"]
    refusals = [text for text in said if "10077" in text]
    assert 1 <= len(refusals) <= 2 and "training continues" in refusals[0], said  # one for a batch, one for one by one
    assert any(re.match(r"the log takes messages again after .*; 0 observations were dropped", text) for text in said)


async def test_without_jetstream_training_goes_on_and_says_what_to_look_at(
    nats: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the server has switched it off because its disk is full: nobody takes what is for the log."""
    learner = client(nats)
    await off_loop(learner.start)
    await until(lambda: not link_of(learner).unsent)
    async with nats.bus() as admin:
        await admin.jetstream.delete_stream(log_stream(RUN))
    learner.observe(1, {"loss": 1.0})
    await until(lambda: "JetStream is off" in caplog.text)
    assert polled(learner) and link_of(learner).unsent == 1
    assert not await off_loop(learner.close, "completed", timeout_s=0.2)


async def test_the_end_counts_all_that_was_dropped(nats: Server) -> None:
    learner = client(nats)
    link_of(learner)._outbox._kept_bytes = 20_000
    await off_loop(learner.start)
    await until(lambda: not link_of(learner).unsent)
    await nats.kill()
    for step in range(1, 1001):
        learner.observe(step, {"loss": 1.0})
    closing = asyncio.create_task(off_loop(learner.close, "completed", timeout_s=30))
    await nats.start()
    assert await closing
    said = await nats.bodies()
    steps = [body.step for body in said if isinstance(body, Observation)]
    assert isinstance(said[0], RunStarted) and isinstance(said[-1], RunEnded)
    assert steps == list(range(1001 - len(steps), 1001))
    assert said[-1].dropped_observations == 1000 - len(steps) > 0

"""The link under faults that no server shows by itself: silence, refusals, words that are lost, fifty connections.

What a proxy or the server can do is done to the real link; what is patched into `Bus`, to the writer and the reader.
"""

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
from tests.support.learner_side import (
    RUN,
    Server,
    decide,
    decision,
    keep_observing,
    learner_on,
    off_loop,
    polled,
    serving,
    until,
)
from tests.support.link_on_loop import LinkOnLoop

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.events import Entry
from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.names import Subjects, log_stream
from oven_core.protocol.subjects import log_subjects
from oven_core.security.credentials import Credentials
from oven_learner.link import bus_session, log_writer
from oven_learner.link.log_writer import MIN_BATCH
from oven_learner.link.process_link import ProcessLink

BATCH = 3 * MIN_BATCH
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
        self._writers: list[asyncio.StreamWriter] = []
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

    def cut(self) -> None:
        """Hang up on its newest connection."""
        self._writers[-1].transport.abort()

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
        self._writers.append(writer)
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


def on_loop(nats: Server, url: str = "", **settings: Any) -> LinkOnLoop:
    return LinkOnLoop(url or nats.url, RUN, Credentials.load(nats.creds("learner")), **settings)


async def in_log(nats: Server) -> list[int]:
    """The number of every message of the learner, in the log's order."""
    return [body.n for body in await nats.bodies() if not isinstance(body, Decision)]  # type: ignore[attr-defined]


async def test_a_connection_that_swallows_everything_is_given_up(nats: Server) -> None:
    rate = [1.0]
    async with Proxy(nats) as proxy:
        learner = learner_on(ProcessLink(proxy.url, RUN, Credentials.load(nats.creds("learner"))), rate)
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
        assert await off_loop(learner.close, "completed", timeout_s=60)
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
    monkeypatch.setattr(bus_session, "CHECK_INTERVAL_S", 0.15)
    monkeypatch.setattr(bus_session, "RETRY_S", 0.01)
    me, rate = psutil.Process(), [1.0]
    async with Proxy(nats) as proxy:
        link = on_loop(nats, proxy.url)
        learner = learner_on(link, rate)
        await off_loop(learner.start)

        def held() -> int:
            """Tasks of the loop, and sockets of this process that lead to the proxy."""
            port = int(proxy.url.rsplit(":", 1)[1])
            ours = sum(1 for c in me.net_connections("tcp4") if c.raddr and c.raddr.port == port)
            return len(asyncio.all_tasks()) + ours

        async def in_full_use(number: int) -> None:
            async with nats.bus("mesh") as mesh:
                await decide(mesh, decision(number, value=1.0 + number))
            await until(lambda: polled(learner) and rate[0] == 1.0 + number and not link.unsent)

        await in_full_use(1)
        at_first = 0
        for _ in range(20):  # what comes and goes while one connection is in use
            at_first = max(at_first, held())
            await asyncio.sleep(0.01)
        descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
        for number in range(50):
            seen = proxy.made
            if number % 2:
                proxy.hole()
            else:
                proxy.cut()
            learner.observe(number, {"loss": 1.0})
            await until(lambda seen=seen: proxy.made > seen)  # type: ignore[misc]
        await in_full_use(2)
        await until(lambda: held() <= at_first)
        if descriptors:
            # The proxy's own sockets to the server go when it has noticed.
            await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 2)
        assert await off_loop(learner.close, "completed", timeout_s=60)
    assert await in_log(nats) == list(range(1, 55))


async def test_a_lost_acknowledgement_never_duplicates_a_message(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log took it and the word was lost. Message ids stand in a header that says nothing to the server, as if it
    had forgotten them meanwhile."""
    lost: list[str] = []
    all_of, one_of = Bus.append_all, Bus.append

    async def append_all(bus: Bus, *args: Any, **kwargs: Any) -> int:
        reply = await all_of(bus, *args, **kwargs)
        if lost.count("batch") < 2:
            lost.append("batch")
            raise BusError("no word came back")
        return reply

    async def append(bus: Bus, *args: Any, **kwargs: Any) -> int:
        reply = await one_of(bus, *args, **kwargs)
        if lost.count("one") < 2:
            lost.append("one")
            raise BusError("no word came back")
        return reply

    monkeypatch.setattr(log_writer, "RETRY_S", 0.01)
    for module in ("bus.log_client", "protocol.events"):
        monkeypatch.setattr(f"oven_core.{module}.MESSAGE_ID", "Some-Other-Id")
    monkeypatch.setattr(Bus, "append_all", append_all)
    monkeypatch.setattr(Bus, "append", append)
    link = on_loop(nats)
    learner = learner_on(link)
    await off_loop(learner.start)
    await until(lambda: not link.unsent)  # the announcement goes alone
    step = 0
    while lost.count("batch") < 2:
        for _ in range(BATCH):
            step += 1
            learner.observe(step, {"loss": 1.0})
        await until(lambda: not link.unsent)
    assert await off_loop(learner.close, "completed", timeout_s=60)
    assert sorted(lost) == ["batch", "batch", "one", "one"]
    assert await in_log(nats) == list(range(1, step + 3))


async def test_a_forged_message_settles_nothing(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing went out, and when the log is asked it holds something newer of this incarnation."""
    real, withheld = Bus.append, list[str]()

    async def append(bus: Bus, subject: str, data: bytes, **kwargs: Any) -> int:
        if subject == ON.observation and not withheld:
            withheld.append(subject)
            forged = Observation(incarnation=1, n=10**6, tick=10**6, step=10**6, progress=0, metrics={})
            async with nats.bus() as admin:
                await real(admin, ON.observation, forged.wire(), message_id="1-1000000-0123456789abcdef")
            raise BusError("no word came back")
        return await real(bus, subject, data, **kwargs)

    monkeypatch.setattr(log_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(Bus, "append", append)
    link = on_loop(nats)
    learner = learner_on(link)
    await off_loop(learner.start)
    learner.observe(1, {"loss": 1.0})
    assert await off_loop(learner.close, "completed", timeout_s=60)
    assert withheld and sorted(await in_log(nats)) == [1, 2, 3, 10**6]


async def test_a_batch_that_arrives_late_is_not_duplicated(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a connection that was given up, after the log was asked: then the log refuses the copy as a duplicate."""
    real, tries = Bus.append_all, list[str]()

    async def append_all(bus: Bus, entries: Sequence[Entry], batch: str, **kwargs: Any) -> int:
        tries.append(batch)
        if len(tries) == 1:
            await real(bus, entries[: MIN_BATCH // 2], "late", **{**kwargs, "traceparents": ()})
        return await real(bus, entries, batch, **kwargs)

    monkeypatch.setattr(Bus, "append_all", append_all)
    link = on_loop(nats)
    learner = learner_on(link)
    await off_loop(learner.start)
    for step in range(1, BATCH + 1):
        learner.observe(step, {"loss": 1.0})
    assert await off_loop(learner.close, "completed", timeout_s=60)
    assert tries
    assert await in_log(nats) == list(range(1, BATCH + 3))


async def test_a_full_log_does_not_stop_training_and_is_reported_once(
    nats: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(log_writer, "MAX_RETRY_S", 0.01)
    refused: list[str] = []

    def noting(real: Any) -> Any:
        async def appended(*args: Any, **kwargs: Any) -> int:
            try:
                return await real(*args, **kwargs)  # type: ignore[no-any-return]
            except BusError as error:
                refused.append(str(error))
                raise

        return appended

    for name in ("append", "append_all"):
        monkeypatch.setattr(Bus, name, noting(getattr(Bus, name)))
    link = on_loop(nats)
    learner = learner_on(link)
    await off_loop(learner.start)
    await until(lambda: not link.unsent)
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
    await until(lambda: not link.unsent)
    assert await off_loop(learner.close, "completed", timeout_s=60)
    assert await in_log(nats) == list(range(1, 2 * BATCH + 3))
    lines = [record.getMessage() for record in caplog.records if record.name == "oven.learner"]
    refusals = [text for text in lines if "10077" in text]
    assert 1 <= len(refusals) <= 2 and "training continues" in refusals[0], lines  # one for a batch, one for one by one
    assert any(re.match(r"sending messages again after .*; 0 observations were dropped", text) for text in lines)


async def test_without_jetstream_training_continues_and_the_log_says_what_to_check(
    nats: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the server has switched it off because its disk is full: nobody takes what is for the log."""
    link = ProcessLink(nats.url, RUN, Credentials.load(nats.creds("learner")))
    learner = learner_on(link)
    await off_loop(learner.start)
    await until(lambda: not link.unsent)
    async with nats.bus() as admin:
        await admin.jetstream.delete_stream(log_stream(RUN))
    learner.observe(1, {"loss": 1.0})
    await until(lambda: "JetStream is off" in caplog.text)
    await until(lambda: polled(learner) and link.unsent == 1)
    assert not await off_loop(learner.close, "completed", timeout_s=0.2)
    assert link.unsent == 2  # with the run's end: there is no folder, and so no spool that could keep them


async def test_the_end_counts_all_that_was_dropped(nats: Server) -> None:
    link = on_loop(nats, max_bytes=20_000)
    learner = learner_on(link)
    await off_loop(learner.start)
    await until(lambda: not link.unsent)
    await nats.kill()
    for step in range(1, 1001):
        learner.observe(step, {"loss": 1.0})
    closing = asyncio.create_task(off_loop(learner.close, "completed", timeout_s=60))
    await nats.start()
    assert await closing
    messages = await nats.bodies()
    steps = [body.step for body in messages if isinstance(body, Observation)]
    assert isinstance(messages[0], RunStarted) and isinstance(messages[-1], RunEnded)
    assert steps == list(range(1001 - len(steps), 1001))
    assert messages[-1].dropped_observations == 1000 - len(steps) > 0


async def test_a_permanently_closed_connection_is_replaced(nats: Server) -> None:
    """nats-py closes itself on some of the server's errors and never comes back by itself."""
    rate = [1.0]
    learner = learner_on(on_loop(nats), rate)
    opened: list[Bus] = []
    real = Bus.open

    async def remember(*args: Any, **kwargs: Any) -> Bus:
        opened.append(await real(*args, **kwargs))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bus, "open", remember)
        await off_loop(learner.start)
        await opened[0].client.close()
        await until(lambda: len(opened) == 2)
        learner.observe(1, {"loss": 1.0})
        async with nats.bus("mesh") as mesh:
            await decide(mesh, decision(1))
        await until(lambda: polled(learner) and rate[0] == 2.0)
        assert await off_loop(learner.close, "completed")
    assert [type(b) for b in await nats.bodies() if not isinstance(b, Decision)] == [
        RunStarted, Observation, Receipt, RunEnded
    ]  # fmt: skip


async def test_a_call_that_never_returns_costs_only_a_connection(nats: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nats-py's publish does on a frozen peer: it ignores its cancellation."""
    monkeypatch.setattr(bus_session, "CHECK_INTERVAL_S", 0.01)
    real, stuck = Bus.append, list[Bus]()

    async def append(bus: Bus, *args: Any, **kwargs: Any) -> int:
        if not stuck:
            stuck.append(bus)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        assert bus is not stuck[0]
        return await real(bus, *args, **kwargs)

    monkeypatch.setattr(Bus, "append", append)
    link = on_loop(nats)
    learner = learner_on(link)
    await off_loop(learner.start)
    learner.observe(1, {"loss": 1.0})
    await until(lambda: not link.unsent)
    monkeypatch.undo()
    await off_loop(learner.close, "completed", timeout_s=5)
    assert [type(body) for body in await nats.bodies()] == [RunStarted, Observation, RunEnded]


async def test_during_an_outage_the_oldest_observations_are_dropped_and_receipts_stay(nats: Server) -> None:
    rate, link = [1.0], on_loop(nats, max_bytes=50_000)
    learner = learner_on(link, rate)
    await off_loop(learner.start)
    async with nats.bus("mesh") as mesh:
        await decide(mesh, decision(1, value=4.0, apply_at=200))
        await decide(mesh, decision(2, value=3.0))
    await until(lambda: polled(learner) and rate[0] == 3.0)
    await until(lambda: not link.unsent)
    await nats.kill()
    for step in range(1, 501):
        learner.observe(step, {"loss": 1.0})
        learner.poll()
    assert rate[0] == 4.0
    await nats.start()
    assert await off_loop(learner.close, "completed", timeout_s=30)
    messages = await nats.bodies()
    steps = [body.step for body in messages if isinstance(body, Observation)]
    assert steps == list(range(501 - len(steps), 501)) and 50 < len(steps) < 200
    assert [(body.after, body.step) for body in messages if isinstance(body, Receipt)] == [(3.0, 0), (4.0, 199)]
    assert link.writer.dropped_count == 500 - len(steps)

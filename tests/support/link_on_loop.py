"""A writer and a reader of the log on the test's own event loop, as the link's worker has them in its process: for
faults that are patched into `Bus`, and for spans that the test itself collects."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from functools import partial

from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.protocol.messages import LogMessage
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_learner.link.bus_session import BusSession
from oven_learner.link.link_interface import UnbuiltMessage, build_observation
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import LogWriter
from oven_learner.link.outbox import MAX_WAITING_BYTES, OutageLog
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter

POLL_S = 0.005


class LinkOnLoop:
    """A `Link`. `open` and `close` are called from another thread than the loop's."""

    dropped_count = 0

    def __init__(self, url: str, run: str, credentials: Credentials, *, max_bytes: int = MAX_WAITING_BYTES) -> None:
        secret, contexts, outages = secrets.token_bytes(16), tracing.Contexts(), OutageLog()
        self.writer = LogWriter(run, secret, contexts, outages, max_bytes=max_bytes)
        self.reader = LogReader(run, Keyring(), secret, contexts, lambda _, body: self._inbox.append(body))
        self._session = BusSession(url, run, credentials, self.writer, self.reader, outages)
        self._loop = asyncio.get_running_loop()
        self._new: deque[UnbuiltMessage] = deque()
        self._inbox: deque[LogMessage] = deque()

    @property
    def unsent(self) -> int:
        return len(self._new) + self.writer.unsent

    def open(self) -> ResumeState:
        return asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()

    def begin(self) -> None:
        self._loop.call_soon_threadsafe(self.reader.begin)

    def send(self, unbuilt: UnbuiltMessage) -> None:
        self._new.append(unbuilt)

    observe = send

    def show(self, convert: SampleConverter) -> None:
        pass

    def receive(self) -> LogMessage | None:
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        return asyncio.run_coroutine_threadsafe(self._close(timeout_s), self._loop).result()

    async def _open(self) -> ResumeState:
        states: list[ResumeState] = []

        async def begin(bus: Bus) -> None:
            states.append(await self.reader.catch_up(bus))
            self.writer.last_sent = states[0].last_seq

        bus = await self._session.open(begin)
        self._using = asyncio.create_task(self._session.run(bus))
        self._collecting = asyncio.create_task(self._collect())
        return states[0]

    async def _close(self, timeout_s: float) -> bool:
        while self._new:
            await asyncio.sleep(POLL_S)
        self.writer.closing = True
        await asyncio.wait({self._using}, timeout=timeout_s)
        await end(self._using, self._collecting)
        return not self.unsent

    async def _collect(self) -> None:
        while True:
            while self._new:
                unbuilt = self._new.popleft()
                if isinstance(unbuilt, tuple):
                    self.writer.put(partial(build_observation, *unbuilt), droppable=True)
                else:
                    self.writer.put(unbuilt)
            await asyncio.sleep(0 if self.writer.collect() else POLL_S)

"""The process at the other end of `process_link.ProcessLink`: messages come to it from a pipe, and go into the log;
what the log says goes into a pipe."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import select
import signal
import sys
import time
from typing import Any

from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.cpu_affinity import lower_priority
from oven_core.errors import BusError, OvenError
from oven_core.protocol.messages import LogMessage, Observation
from oven_core.security.signing import Keyring
from oven_core.telemetry import tracing
from oven_learner.link import spool
from oven_learner.link.bus_session import BusSession
from oven_learner.link.frames import BEGIN, GRACE_S, Closing, Frame, LogItem, Resumed, Status, WorkerConfig
from oven_learner.link.link_interface import PendingObservation
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import LogWriter
from oven_learner.link.machine_readings import MachineReadings
from oven_learner.link.outage_log import OutageLog
from oven_learner.link.pipes import Flag, Inlet, Outlet, packed
from oven_learner.link.samples import SamplePublisher
from oven_runs.home.spool import Spool, append

log = logging.getLogger("oven.learner")

STATUS_S = 0.5
"""How often it says how far it is, if anything has changed; its end it says at once."""


def main(args: list[str]) -> int:
    """Of the process. `args`: the descriptors of the pipe to read, the one to write, the one for what the log says,
    and the flag that is raised with that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when the learner does, not before
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    inlet, outlet, items, flag = Inlet(int(args[0])), Outlet(int(args[1])), Outlet(int(args[2])), Flag(int(args[3]))
    while not (said := inlet.take()):
        select.select([inlet.fd], [], [])
        if inlet.ended:
            return 0
    config: WorkerConfig = said.pop(0)
    tracing.start("learner", config.run)
    try:
        return Worker(config, inlet, outlet, items, flag, said).run()
    finally:
        tracing.shutdown()


class Worker:
    """A writer and a reader of the log, whose training thread is at the other end of the pipe."""

    def __init__(
        self, config: WorkerConfig, inlet: Inlet, outlet: Outlet, items: Outlet, flag: Flag, said: list[Any]
    ) -> None:
        """`said`: what came through the pipe with the configuration."""
        self._config, self._inlet, self._outlet, self._items = config, inlet, outlet, items
        self._flag, self._said = flag, said
        contexts, outages, run = tracing.Contexts(), OutageLog(), config.run
        self._writer = LogWriter(run, config.secret, contexts, outages)
        self._reader = LogReader(run, Keyring(config.pin), config.secret, contexts, self._hand_over)
        self._samples = SamplePublisher(run)
        besides = (self._samples.run,)
        self._session = BusSession(config.url, run, config.credentials, self._writer, self._reader, outages, besides)
        self._opened = self._given_up = self._alone = False
        self._sending: asyncio.Task[None] | None = None
        self._arrived: asyncio.Event | None = None
        self._taken = 0
        self._status, self._status_at = Status(), 0.0
        self._machine = MachineReadings(os.getppid()) if config.machine else None
        self._spool: Spool | None = None
        self._left = self._kept = 0  # what the log did not take by the end; of that, what is on the disk

    def run(self) -> int:
        """Until the learner closes it or is gone. The exit code."""
        try:
            self._spool = spool.taken(self._config.folder, self._config.run)
            asyncio.run(self._serve())
        except BaseException as error:
            if not self._opened:
                if not isinstance(error, OvenError):
                    raise
                spool.let_go(self._spool)
                self._tell(error)
            elif not self._given_up:
                log.error("the link to the bus ended (%s); training continues on its last settings", error)
                if not self._writer.closing:
                    return 1
        finally:
            tracing.flush()
        if self._opened:
            rest = self._writer.rest()
            self._left, self._kept = len(rest), spool.keep(self._spool, rest, self._config.credentials)
            self._tell(self._state(over=True))
        deadline = time.monotonic() + GRACE_S
        while not self._flushed() and time.monotonic() < deadline:
            time.sleep(self._config.poll_s)
        return 0

    async def _serve(self) -> None:
        bus = await self._session.open(self._begin)
        self._opened = True
        self._sending = asyncio.create_task(self._session.run(bus))
        collecting = asyncio.create_task(self._collect())
        try:
            await self._sending
        finally:
            await end(collecting)

    async def _begin(self, bus: Bus) -> None:
        """What the log has to be told and asked first."""
        config = self._config
        if self._spool is not None:
            if self._spool.content.messages:
                log.warning("%s goes into the log first: %s", self._spool.path, self._spool.content.summary())
                await append(bus, config.run, self._spool.content.messages)
            spool.begin(self._spool)
        if not config.replaces:
            past = await self._reader.catch_up(bus)
            self._writer.last_sent = past.last_seq
            self._tell(past)
            return
        self._writer.last_sent, self._writer.logged = config.sent, config.logged
        await self._reader.continue_from(bus, config.seen)
        async for message in self._writer.own_messages(bus):
            self._taken = message.n
            self._writer.logged += isinstance(message, Observation)
        self._tell(Resumed(self._taken, self._writer.logged))

    async def _collect(self) -> None:
        """Take over what the learner says. This continues while the bus is away, so that memory stays bounded."""
        while True:
            await (asyncio.sleep(0) if self._writer.collect() else self._heard())

    async def _heard(self) -> None:
        """Woken by the pipe: it is not the training thread that writes to it."""
        loop = asyncio.get_running_loop()
        if self._arrived is None:
            self._arrived = asyncio.Event()
            loop.add_reader(self._inlet.fd, self._arrived.set)
        pressed = not self._flushed() or self._writer.closing
        late = self._writer.unsent or self._state() != self._status
        try:
            async with asyncio.timeout(self._config.poll_s if pressed else STATUS_S if late else None):
                if not self._said:
                    await self._arrived.wait()
        except TimeoutError:
            pass
        self._arrived.clear()
        for said in [*self._said, *self._inlet.take()]:
            self._take(said)
        self._said = []
        if self._inlet.ended and not self._alone:  # the learner is gone; what it said is delivered, if that is soon
            self._alone = True
            loop.remove_reader(self._inlet.fd)
            self._end_within(GRACE_S)
        self._report()

    def _take(self, said: Any) -> None:
        if isinstance(said, Frame):
            self._taken, self._writer.lost = said.n, said.lost
            self._writer.put(said.make)
        elif isinstance(said, tuple):
            self._taken, self._writer.lost, *atoms = said
            seen = PendingObservation(*atoms)
            if self._machine is not None:
                seen.metrics |= self._machine.take_if_due()
            self._writer.put(seen, droppable=True)
        elif isinstance(said, dict):
            self._samples.put(said)
        elif said == BEGIN:
            self._reader.begin()
        elif isinstance(said, Closing):
            self._end_within(said.within_s)

    def _end_within(self, limit_s: float) -> None:
        """What is left is sent until then."""
        self._writer.closing = True
        asyncio.get_running_loop().call_later(limit_s, self._give_up)

    def _give_up(self) -> None:
        self._given_up = True
        if self._sending is not None:
            self._sending.cancel()

    def _hand_over(self, seq: int, body: LogMessage) -> None:
        self._items.post(packed(LogItem(seq, body)))
        self._flag.raise_()

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._status_at + STATUS_S and (state := self._state()) != self._status:
            self._status, self._status_at = state, now
            self._tell(state)

    def _state(self, over: bool = False) -> Status:
        writer, waiting = self._writer, self._writer.unsent + self._left
        return Status(self._taken, waiting, writer.dropped, writer.last_sent, writer.logged, over, self._kept)

    def _tell(self, said: object) -> None:
        try:
            frame = packed(said)
        except Exception as error:
            if not isinstance(said, OvenError):
                raise
            frame = packed(BusError(f"{said} ({error})"))
        self._outlet.post(frame)

    def _flushed(self) -> bool:
        """Whether the learner was told all that it has to hear."""
        if not self._items.idle:
            self._items.flush()
            self._flag.raise_()  # there may be more than at the last look
        return self._outlet.flush() and self._items.idle


if __name__ == "__main__":
    lower_priority()
    gc.freeze()  # what was imported stays
    sys.exit(main(sys.argv[1:]))

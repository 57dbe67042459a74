"""The process at the other end of `process_link.ApartLink`: a `BusLink` whose messages come from a pipe and go into
one."""

from __future__ import annotations

import asyncio
import gc
import logging
import select
import signal
import sys
import threading
import time
from typing import Any

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, OvenError
from oven_controller.process.cpu_affinity import give_way
from oven_controller.protocol.messages import LogMessage, Observation
from oven_controller.runs.spool import Spool, append
from oven_controller.security.signing import Keyring
from oven_controller.telemetry import tracing
from oven_learner.link import spool
from oven_learner.link.bus_link import BusLink, Reading
from oven_learner.link.pipes import Flag, Inlet, Outlet, packed
from oven_learner.link.process_link import GRACE_S, Closing, Known, Mission, News, Parcel, Status
from oven_learner.link.resume_state import Past

log = logging.getLogger("oven.learner")

STATUS_S = 0.5
"""How often it says how far it is, if anything has changed; its end it says at once."""


def main(args: list[str]) -> int:
    """Of the process. `args`: the descriptors of the pipe to read, the one to write, the one for what the log says,
    and the flag that is raised with that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when the learner does, not before
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    inlet, outlet, news, flag = Inlet(int(args[0])), Outlet(int(args[1])), Outlet(int(args[2])), Flag(int(args[3]))
    while not (said := inlet.take()):
        select.select([inlet.fd], [], [])
        if inlet.ended:
            return 0
    mission: Mission = said.pop(0)
    tracing.start("learner", mission.run)
    try:
        return Hosted(mission, inlet, outlet, news, flag, said).run()
    finally:
        tracing.shutdown()


class Hosted(BusLink):
    """Its training thread is at the other end of the pipe."""

    def __init__(
        self, mission: Mission, inlet: Inlet, outlet: Outlet, news: Outlet, flag: Flag, said: list[Any]
    ) -> None:
        super().__init__(
            mission.url, mission.run, mission.credentials, poll_s=mission.poll_s, keyring=Keyring(mission.pin),
            secret=mission.secret,
        )  # fmt: skip
        self._mission, self._inlet, self._outlet, self._news = mission, inlet, outlet, news
        self._flag, self._said = flag, said
        self._arrived: asyncio.Event | None = None
        self._alone = False
        self._taken = self._elsewhere = 0
        self._status, self._status_at = Status(), 0.0
        self._spool: Spool | None = None
        self._kept = 0

    @property
    def dropped(self) -> int:
        return super().dropped + self._elsewhere

    def run(self) -> int:
        """Until the learner closes it or is gone. The exit code."""
        try:
            self._spool = spool.taken(self._mission.folder, self._mission.run)
            self.open()
        except OvenError as error:
            spool.let_go(self._spool)
            self._tell(error)
        else:
            self._thread.join()
            if self._failure is not None and not self._closing.is_set():
                return 1
            self._kept = spool.keep(self._spool, list(self._outbox.rest()), self._credentials)
            self._tell(self._state(over=True))
        deadline = time.monotonic() + GRACE_S
        while not self._flushed() and time.monotonic() < deadline:
            time.sleep(self._poll_s)
        return 0

    async def _begin(self, bus: Bus) -> Past:
        mission = self._mission
        if self._spool is not None:
            if self._spool.left.messages:
                log.warning("%s goes into the log first: %s", self._spool.path, self._spool.left.words())
                await append(bus, mission.run, self._spool.left.messages)
            spool.begin(self._spool)
        if not mission.replaces:
            past = await super()._begin(bus)
            self._tell(past)
            return past
        self._last_read, self._last_sent, self._logged = mission.seen, mission.said, mission.logged
        self._announced = True  # by the process before this one
        head = await bus.head(mission.run)
        if head:
            async for event in bus.read(mission.run, until=head, subjects=[self._on.run]):
                self._keyring.verify(event)  # it learns who signs
        async for message in self._mine(bus):
            self._taken = message.n
            self._logged += isinstance(message, Observation)
        self._tell(Known(self._taken, self._logged))
        return Past(last_seq=mission.seen)

    async def _spoken(self) -> None:
        """Woken by the pipe: it is not the training thread that writes to it."""
        loop = asyncio.get_running_loop()
        if self._arrived is None:
            self._arrived = asyncio.Event()
            loop.add_reader(self._inlet.fd, self._arrived.set)
        pressed = not self._flushed() or self._closing.is_set()
        late = self.unsent or self._state() != self._status
        try:
            async with asyncio.timeout(self._poll_s if pressed else STATUS_S if late else None):
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
        if isinstance(said, Parcel):
            self._taken, self._elsewhere = said.n, said.lost
            self._outbox.put(said.make, droppable=False)
        elif isinstance(said, tuple):
            self._taken, self._elsewhere, *atoms = said
            self._outbox.put(Reading(*atoms), droppable=True)
        elif said == "begin":
            self._listen.set()
        elif isinstance(said, Closing):
            self._end_within(said.within_s)

    def _end_within(self, limit_s: float) -> None:
        """What is left is sent until then."""
        self._closing.set()
        timer = threading.Timer(limit_s, self._give_up)
        timer.daemon = True
        timer.start()

    def _hand_over(self, seq: int, body: LogMessage) -> None:
        self._news.post(packed(News(seq, body)))
        self._flag.raise_()

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._status_at + STATUS_S and (state := self._state()) != self._status:
            self._status, self._status_at = state, now
            self._tell(state)

    def _state(self, over: bool = False) -> Status:
        waiting = self.unsent + self._kept
        return Status(self._taken, waiting, super().dropped, self._last_sent, self._logged, over, self._kept)

    def _tell(self, said: object) -> None:
        try:
            parcel = packed(said)
        except Exception as error:
            if not isinstance(said, OvenError):
                raise
            parcel = packed(BusError(f"{said} ({error})"))
        self._outlet.post(parcel)

    def _flushed(self) -> bool:
        """Whether the learner was told all that it has to hear."""
        if not self._news.idle:
            self._news.flush()
            self._flag.raise_()  # there may be more than at the last look
        return self._outlet.flush() and self._news.idle


if __name__ == "__main__":
    give_way()
    gc.freeze()  # what was imported stays
    sys.exit(main(sys.argv[1:]))

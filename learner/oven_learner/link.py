"""Between the training thread and the bus: a thread that owns the connection and polls.

Nothing on the training thread wakes another thread: a wake-up lets the scheduler run the woken thread on the trainer's
core, milliseconds at the 99th percentile on a busy machine, where an append to a deque is microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import BusError
from oven_controller.messages import (
    Body,
    Decision,
    LearnerMessage,
    Observation,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Value,
)
from oven_controller.names import Subjects

log = logging.getLogger("oven.learner")

KEPT_OBSERVATIONS = 10_000
"""Held while the bus is away; beyond that the oldest are dropped and counted. Receipts and run events never are."""
POLL_S = 0.005
RETRY_S = 0.25
OPEN_S = 30.0
"""For connecting and reading what earlier incarnations left."""


@dataclass(frozen=True, slots=True)
class Past:
    """What the log says of the run's earlier incarnations."""

    incarnation: int = 0
    tick: int = 0
    last_seq: int = 0
    values: Mapping[str, Value] = field(default_factory=dict)
    """Actuator → value read back at its last change."""
    unanswered: tuple[Decision, ...] = ()
    """Adopted decisions without a receipt."""


class Link(Protocol):
    """The seam: the client's tests and the benches stand here instead of a bus."""

    dropped: int

    def open(self) -> Past:
        """Connect; raises OvenError when that cannot be."""

    def begin(self) -> None:
        """Take in decisions from now on."""

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        """Hand over a message to be made and sent later, in order. Never blocks, never raises."""

    def receive(self) -> Body | None:
        """The next decision, operator command or closed step, if one has come."""

    def close(self, timeout_s: float) -> bool:
        """Send what is left, within the limit. False when something stayed unsent."""


class BusLink:
    """The real one."""

    def __init__(self, url: str, run: str, credentials: Credentials | None, *, poll_s: float = POLL_S) -> None:
        self.dropped = 0
        self._url, self._run, self._credentials = url, run, credentials
        self._on = Subjects(run)
        self._poll_s = poll_s
        self._outbox: deque[Callable[[], LearnerMessage]] = deque()
        self._droppable: deque[Callable[[], LearnerMessage]] = deque()
        self._inbox: deque[Body] = deque()
        self._past: Past | None = None
        self._failure: BaseException | None = None
        self._opened = threading.Event()
        self._listen = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="oven-link", daemon=True)

    def open(self) -> Past:
        self._thread.start()
        if not self._opened.wait(OPEN_S):
            raise BusError(f"the log of run {self._run!r} on {self._url} was not read within {OPEN_S:g} s")
        if self._failure is not None:
            raise self._failure
        assert self._past is not None
        return self._past

    def begin(self) -> None:
        self._listen.set()

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        if droppable:
            self._droppable.append(make)
        self._outbox.append(make)

    def receive(self) -> Body | None:
        try:
            return self._inbox.popleft()
        except IndexError:
            return None

    def close(self, timeout_s: float) -> bool:
        self._closing.set()
        self._thread.join(timeout_s)
        return not self._outbox

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._opened.is_set():
                log.error("the link to the bus ended (%s); training goes on on its last settings", error)
        finally:
            self._opened.set()

    async def _serve(self) -> None:
        async with Bus.connect(self._url, self._credentials, name="learner") as bus:
            self._past = await read_past(bus, self._run)
            self._opened.set()
            listening = asyncio.create_task(self._take_in(bus))
            try:
                while not (self._closing.is_set() and not self._outbox):
                    if not await self._send_one(bus):
                        await asyncio.sleep(self._poll_s)
            finally:
                listening.cancel()
                await asyncio.wait({listening})

    async def _send_one(self, bus: Bus) -> bool:
        """The oldest message, to the log, with its acknowledgement. It stays in the outbox until then, so order holds
        and the first failure stops the rest."""
        while len(self._droppable) > KEPT_OBSERVATIONS:
            oldest = self._droppable.popleft()
            with contextlib.suppress(ValueError):
                self._outbox.remove(oldest)
                self.dropped += 1
        if not self._outbox:
            return False
        make = self._outbox[0]
        try:
            message = make()
        except Exception as error:
            log.error("a message could not be made and is left out: %s", error)
            self._forget(make)
            return True
        try:
            await bus.append(self._subject(message), message.wire(), message_id=f"{message.incarnation}-{message.n}")
        except BusError as error:
            log.warning("%s; trying again", error)
            await asyncio.sleep(RETRY_S)
            return True
        self._forget(make)
        return True

    def _forget(self, make: Callable[[], LearnerMessage]) -> None:
        if self._outbox and self._outbox[0] is make:
            self._outbox.popleft()
        if self._droppable and self._droppable[0] is make:
            self._droppable.popleft()

    def _subject(self, message: LearnerMessage) -> str:
        if isinstance(message, Observation):
            return self._on.observation
        return self._on.receipt if isinstance(message, Receipt) else self._on.run

    async def _take_in(self, bus: Bus) -> None:
        """Decisions come from the log and from nowhere else: a plain subscriber may see one twice, or not at all."""
        assert self._past is not None
        while not self._listen.is_set():
            await asyncio.sleep(self._poll_s)
        wanted = [self._on.decision("*"), self._on.operator("*"), self._on.step("*")]
        async for event in bus.read(self._run, after=self._past.last_seq, subjects=wanted):
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._inbox.append(event.body)


async def read_past(bus: Bus, run: str) -> Past:
    """Fold the log of earlier incarnations. Raises BusError when the run has no log."""
    on = Subjects(run)
    head = await bus.head(run)
    incarnation = tick = 0
    values: dict[str, Value] = {}
    unanswered: dict[str, Decision] = {}
    wanted = [on.run, on.observation, on.receipt, on.decision("*")]
    if head:
        async for event in bus.read(run, until=head, subjects=wanted):
            body = event.body
            if isinstance(body, RunStarted | RunEnded | Observation | Receipt):
                incarnation = max(incarnation, body.incarnation)
                tick = max(tick, body.tick)
            if isinstance(body, Decision) and body.verdict == "adopted":
                unanswered[body.id] = body
            elif isinstance(body, Receipt):
                unanswered.pop(body.decision_id, None)
                if body.status == "applied":
                    values[body.actuator] = body.after
    return Past(incarnation, tick, head, values, tuple(unanswered.values()))

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
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from oven_controller import telemetry
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
from oven_controller.streams import LOG_BYTES

T = TypeVar("T")
log = logging.getLogger("oven.learner")

KEPT_OBSERVATIONS = 10_000
"""Held while the bus is away; beyond that the oldest are dropped and counted. Receipts and run events never are."""
POLL_S = 0.005
RETRY_S = 0.25
OPEN_S = 30.0
"""Without one event read of what earlier incarnations left, the log counts as unreadable."""
REBUILD_S = 2.0
"""Appends that fail for so long are put down to the connection: a new one is made."""
CALL_S = 4.0
"""Above nats-py's own limit of 2 s, which does not hold for a peer that is frozen."""
PING_S = 5.0
"""A connection over which nothing goes out (the run is held) is tried this often."""
HEADERS_BYTES = 1024
"""Left free below the log's limit on a message."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A receipt on its way to `Link.send`, with the Unix time in ns between which the decision was carried out. The
    training thread only reads the clock: the span is made on the link's thread, like the message."""

    receipt: Receipt
    began_ns: int
    ended_ns: int

    def __call__(self) -> Receipt:
        return self.receipt


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


class HangingError(BusError):
    """A call did not come back at all: the client is stuck, not the server slow."""


class BusLink:
    """The real one.

    nats-py reconnects by itself, but not always: a frozen peer blocks it inside calls that cannot be cancelled, and
    some errors close it for good. So when appends fail for long, or reading ends, the connection is made anew.
    """

    def __init__(self, url: str, run: str, credentials: Credentials | None, *, poll_s: float = POLL_S) -> None:
        self.dropped = 0
        self._url, self._run, self._credentials = url, run, credentials
        self._on = Subjects(run)
        self._poll_s = poll_s
        self._outbox: deque[Callable[[], LearnerMessage]] = deque()
        self._droppable: deque[Callable[[], LearnerMessage]] = deque()
        self._inbox: deque[Body] = deque()
        self._contexts = telemetry.Contexts()  # of the decisions that are to be carried out
        self._past: Past | None = None
        self._last_seq = 0
        self._progress = 0
        self._failure: BaseException | None = None
        self._opened = threading.Event()
        self._listen = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="oven-link", daemon=True)

    def open(self) -> Past:
        self._thread.start()
        seen = -1
        while not self._opened.wait(OPEN_S):
            if self._progress == seen:
                self._given_up.set()
                raise BusError(f"the log of run {self._run!r} on {self._url} cannot be read: silent for {OPEN_S:g} s")
            seen = self._progress
        if self._failure is not None:
            raise self._failure
        assert self._past is not None
        return self._past

    def begin(self) -> None:
        self._listen.set()

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        if self._failure is not None:  # nobody empties the outbox any more
            self.dropped += droppable
            return
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
        self._given_up.set()
        return not self._outbox and self._failure is None

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            if self._opened.is_set():
                log.error("the link to the bus ended (%s); training goes on on its last settings", error)
        finally:
            self._opened.set()
            telemetry.flush()

    async def _serve(self) -> None:
        bus = await Bus.open(self._url, self._credentials, name="learner")
        try:
            self._past = await read_past(bus, self._run, self._note_progress)
        except BaseException:
            await _let_go(bus)
            raise
        self._last_seq = self._past.last_seq
        self._opened.set()
        while True:
            await self._use(bus)
            await _let_go(bus)
            if self._finished():
                return
            again = await self._again()
            if again is None:
                return
            bus = again

    async def _use(self, bus: Bus) -> None:
        """Speak and listen, until everything is said or this connection is no good any more."""
        listening = asyncio.create_task(self._take_in(bus))
        clock = asyncio.get_running_loop().time
        failing_since: float | None = None
        used = clock()
        try:
            while not self._finished() and not listening.done():
                try:
                    busy = await self._send_one(bus)
                    if not busy and clock() > used + PING_S:
                        await _bounded(bus.flush())
                        busy = True
                except HangingError as error:
                    log.warning("%s; connecting anew", error)
                    return
                except BusError as error:
                    log.warning("%s; trying again", error)
                    failing_since = failing_since or clock()
                    if clock() >= failing_since + REBUILD_S:
                        return
                    await asyncio.sleep(RETRY_S)
                    continue
                failing_since = None
                if busy:
                    used = clock()
                else:
                    await asyncio.sleep(self._poll_s)
        finally:
            listening.cancel()
            await asyncio.wait({listening}, timeout=1)
            if listening.done() and not listening.cancelled() and (error_ := listening.exception()) is not None:
                log.warning("reading the log ended: %s", error_)

    async def _again(self) -> Bus | None:
        """A new connection, however long that takes; None when nobody waits for it any more."""
        while not self._given_up.is_set():
            self._trim()
            try:
                return await Bus.open(self._url, self._credentials, name="learner")
            except BusError as error:
                log.warning("%s; training goes on", error)
                await asyncio.sleep(RETRY_S)
        return None

    def _finished(self) -> bool:
        return self._given_up.is_set() or (self._closing.is_set() and not self._outbox)

    def _trim(self) -> None:
        while len(self._droppable) > KEPT_OBSERVATIONS:
            oldest = self._droppable.popleft()
            with contextlib.suppress(ValueError):
                self._outbox.remove(oldest)
                self.dropped += 1

    async def _send_one(self, bus: Bus) -> bool:
        """The oldest message, to the log, with its acknowledgement; False when there is none. It stays in the outbox
        until it is in the log, so order holds and the first failure stops the rest. Raises BusError."""
        self._trim()
        if not self._outbox:
            return False
        make = self._outbox[0]
        try:
            message = make()
            wire = message.wire()
            if len(wire) > LOG_BYTES - HEADERS_BYTES:
                raise ValueError(f"a {type(message).__name__} of {len(wire):,} bytes; the log takes {LOG_BYTES:,}")
        except Exception as error:  # it would stand in the way of all that follow
            log.error("a message could not be made and is left out: %s", error)
            self._forget(make)
            return True
        identity = f"{message.incarnation}-{message.n}"
        with self._span(make, message) as span:
            context = span.traceparent
            await _bounded(bus.append(self._subject(message), wire, message_id=identity, traceparent=context))
        self._forget(make)
        return True

    def _forget(self, make: Callable[[], LearnerMessage]) -> None:
        if self._outbox and self._outbox[0] is make:
            self._outbox.popleft()
        if self._droppable and self._droppable[0] is make:
            self._droppable.popleft()

    def _span(self, make: Callable[[], LearnerMessage], message: LearnerMessage) -> telemetry.Span:
        """An observation begins a trace; a receipt ends the one that its decision came with."""
        if isinstance(message, Observation):
            attributes: dict[str, telemetry.Attribute] = {"oven.tick": message.tick, "oven.step": message.step}
            return telemetry.span("observe", attributes=attributes, kind="producer")
        if not isinstance(make, Answer):
            return telemetry.OFF
        receipt = make.receipt
        attributes = {
            "oven.tick": receipt.tick,
            "oven.actuator": receipt.actuator,
            "oven.decision_id": receipt.decision_id,
            "oven.verdict": "adopted",
            "oven.status": receipt.status,
        }
        parent = self._contexts.get(receipt.decision_id)
        return telemetry.span(
            "apply", parent, attributes, kind="consumer", began_ns=make.began_ns, ended_ns=make.ended_ns
        )

    def _subject(self, message: LearnerMessage) -> str:
        if isinstance(message, Observation):
            return self._on.observation
        return self._on.receipt if isinstance(message, Receipt) else self._on.run

    def _note_progress(self) -> None:
        self._progress += 1

    async def _take_in(self, bus: Bus) -> None:
        """Decisions come from the log and from nowhere else: a plain subscriber may see one twice, or not at all."""
        while not self._listen.is_set():
            await asyncio.sleep(self._poll_s)
        wanted = [self._on.decision("*"), self._on.operator("*"), self._on.step("*")]
        async for event in bus.read(self._run, after=self._last_seq, subjects=wanted):
            self._last_seq = event.seq
            if isinstance(event.body, Decision):
                self._contexts.keep(event.body.id, event.traceparent)
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._inbox.append(event.body)


async def _bounded(call: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.wait_for, for calls that swallow their cancellation. Raises HangingError."""
    task = asyncio.create_task(call)
    await asyncio.wait({task}, timeout=CALL_S)
    if not task.done():
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        task.cancel()
        raise HangingError(f"the connection to the bus hangs: no answer and no error in {CALL_S:g} s")
    return task.result()


async def _let_go(bus: Bus) -> None:
    """Close a connection, or abort it: a frozen peer never confirms that it is closed."""
    closing = asyncio.create_task(bus.close())
    await asyncio.wait({closing}, timeout=1)
    if not closing.done():
        writer = getattr(getattr(bus.client, "_transport", None), "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await asyncio.wait({closing}, timeout=1)


async def read_past(bus: Bus, run: str, progressed: Callable[[], None] = lambda: None) -> Past:
    """Fold the log of earlier incarnations. Raises BusError when the run has no log."""
    on = Subjects(run)
    head = await bus.head(run)
    incarnation = tick = 0
    values: dict[str, Value] = {}
    unanswered: dict[str, Decision] = {}
    wanted = [on.run, on.observation, on.receipt, on.decision("*")]
    if head:
        async for event in bus.read(run, until=head, subjects=wanted):
            progressed()
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

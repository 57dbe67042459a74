"""Between the learner and the bus: what a link is, and the one that owns the connection."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from oven_controller.bus.connection import Bus
from oven_controller.bus.streams import LOG_BYTES
from oven_controller.cancellation import end
from oven_controller.errors import BusError
from oven_controller.protocol.codec import Malformed
from oven_controller.protocol.messages import (
    Decision,
    LearnerMessage,
    LogMessage,
    Observation,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
)
from oven_controller.protocol.names import Subjects
from oven_controller.security.credentials import Credentials
from oven_controller.security.signing import Keyring
from oven_controller.telemetry import tracing
from oven_learner.link import spans
from oven_learner.link.outage_log import Trouble
from oven_learner.link.outbox import AT_ONCE, Letter, Make, Outbox
from oven_learner.link.resume_state import Past, check_signer, read_past

log = logging.getLogger("oven.learner")

POLL_S = 0.005
"""Between two looks for what the training thread has said, while nothing is due. Nothing on the training thread wakes
another thread: a wake-up lets the scheduler run the woken thread on the trainer's core, milliseconds at the 99th
percentile on a busy machine, where an append to a deque is microseconds."""
RETRY_S = 0.25
RETRY_MOST_S = 2.0
OPEN_S = 30.0
"""Without one event read of what earlier incarnations left, the log counts as unreadable."""
BATCH_FROM = 16
"""So many messages go as one batch; fewer are there sooner one by one (a batch costs the server files: 2 to 20 ms)."""
TURN_S = 0.5
SILENT_TURNS = 3
"""The server is asked for a sign of life each turn; one that gives none for so many is given up, so within 2 s of its
last word. Turns and not seconds: a learner that was stopped itself counts one, and accuses no one."""
HANGING_TURNS = 20
"""So long one call may take while signs of life come: a log that elects a leader needs seconds."""
HEADERS_BYTES = 1024
"""Left free below the log's limit on a message."""


class Link(Protocol):
    """The seam: the client's tests and the benches stand here instead of a bus."""

    @property
    def dropped(self) -> int:
        """Observations that the log will never have."""

    def open(self) -> Past:
        """Connect; raises OvenError when that cannot be."""

    def begin(self) -> None:
        """Take in decisions from now on."""

    def send(self, make: Make, *, droppable: bool = False) -> None:
        """Hand over the learner's next message (the n-th time its number n), to be made and sent later, in order. What
        makes it can be pickled. The link tells in RunEnded how many observations were dropped. Never blocks, never
        raises."""

    def receive(self) -> LogMessage | None:
        """The next decision, operator command or closed step, if one has come."""

    def close(self, timeout_s: float) -> bool:
        """Send what is left, within the limit. False when something stayed unsent."""


@dataclass(slots=True)
class Reading:
    """An observation that is not made yet."""

    incarnation: int
    n: int
    tick: int
    step: int
    progress: float
    metrics: dict[str, float]

    @property
    def atoms(self) -> tuple[int, int, int, int, float, dict[str, float]]:
        return self.incarnation, self.n, self.tick, self.step, self.progress, self.metrics

    def __call__(self) -> Observation:
        return Observation(
            incarnation=self.incarnation,
            n=self.n,
            tick=self.tick,
            step=self.step,
            progress=self.progress,
            metrics={name: float(value) for name, value in self.metrics.items()},
        )


class BusLink:
    """The one that speaks to the bus, from its own thread.

    It never lets nats-py reconnect: a connection that is lost, silent or stuck is cut off and another is made. What was
    under way then may be in the log or not, so the log is asked before it is sent again. (Message ids alone would not
    do: a copy is stored again once the duplicate window of two minutes is over.)
    """

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        *,
        poll_s: float = POLL_S,
        keyring: Keyring | None = None,
        secret: bytes = b"",
    ) -> None:
        """`secret`: message ids are made with it; of its own making if there is none."""
        self._keyring = keyring or Keyring()
        self._url, self._run, self._credentials = url, run, credentials
        self._on = Subjects(run)
        self._poll_s = poll_s
        self._outbox = Outbox(self._write)
        self._inbox: deque[LogMessage] = deque()
        self._contexts = tracing.Contexts()  # of the decisions that are to be carried out
        self._trouble = Trouble()
        self._past: Past | None = None
        self._announced = False  # this learner's RunStarted stands in the log
        self._superseded = False  # by a second learner under this run's name
        self._last_read = self._last_sent = 0  # sequences
        self._calls = 0  # odd: one is under way
        self._batches = 0
        self._failure: BaseException | None = None
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._more = asyncio.Event()
        self._opened = threading.Event()
        self._listen = threading.Event()
        self._closing = threading.Event()
        self._given_up = threading.Event()
        self._progress = 0
        self._logged = 0  # observations
        self._secret = secret or secrets.token_bytes(16)
        self._thread = threading.Thread(target=self._main, name="oven-link", daemon=True)

    @property
    def dropped(self) -> int:
        return self._outbox.dropped

    @property
    def unsent(self) -> int:
        """Messages that the log has not confirmed."""
        return len(self._outbox)

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

    def send(self, make: Make, *, droppable: bool = False) -> None:
        if self._failure is not None:  # nobody empties the outbox any more
            self._outbox.dropped += droppable
        else:
            self._outbox.put(make, droppable)

    def receive(self) -> LogMessage | None:
        return self._inbox.popleft() if self._inbox else None

    def close(self, timeout_s: float) -> bool:
        self._closing.set()
        self._thread.join(timeout_s)
        self._given_up.set()
        return not self._outbox and self._failure is None

    def _give_up(self) -> None:
        """No more attempts: the link's thread ends now, whatever it waits for. From any other thread."""
        self._given_up.set()
        if self._serving is not None:
            loop, task = self._serving
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._given_up.is_set():
                return
            self._failure = error
            if self._opened.is_set():
                log.error("the link to the bus ended (%s); training continues on its last settings", error)
        finally:
            self._opened.set()
            tracing.flush()

    async def _serve(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving = (asyncio.get_running_loop(), task)
        bus = await self._connect()
        try:
            self._past = await self._begin(bus)
        except BaseException:
            await bus.abort()
            raise
        self._opened.set()
        collecting = asyncio.create_task(self._collect())
        try:
            while True:
                why = await self._use(bus)
                if self._finished() or (again := await self._again(why)) is None:
                    return
                bus = again
        finally:
            await end(collecting)

    async def _begin(self, bus: Bus) -> Past:
        """What the log says of earlier incarnations."""
        past = await read_past(bus, self._run, self._keyring, self._note_progress)
        check_signer(bus, self._run, past)
        self._last_read = self._last_sent = past.last_seq
        return past

    async def _connect(self) -> Bus:
        return await Bus.open(self._url, self._credentials, name="learner", reconnect=False)

    async def _use(self, bus: Bus) -> BaseException:
        """Speak and listen, until everything is said or this connection is no good any more; returns why it is not.
        Nothing is left of it then."""
        tasks = [asyncio.create_task(work(bus)) for work in (self._watch, self._speak, self._take_in)]
        why: BaseException = BusError(f"the connection to {self._url} is lost")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if bus.connected:
                why = next((error for task in tasks if task.done() and (error := task.exception())), why)
            if self._finished():
                await bus.close()
        finally:
            await bus.abort()  # first: what waits for the server cannot be cancelled before
            await end(*tasks, within_s=1)
        return why

    async def _again(self, why: BaseException) -> Bus | None:
        """A new connection, however long that takes; None when no one waits for it any more."""
        self._trouble.note(why, len(self._outbox))
        await asyncio.sleep(RETRY_S)  # one that works and fails at once must not be made a thousand times
        pause = RETRY_S
        while not self._given_up.is_set():
            try:
                return await self._connect()
            except (BusError, OSError) as error:
                self._trouble.note(error, len(self._outbox))
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)
        return None

    def _finished(self) -> bool:
        return self._given_up.is_set() or (self._closing.is_set() and not self._outbox)

    async def _collect(self) -> None:
        """The one poller. It continues while the bus is away, so that memory stays bounded."""
        while True:
            made = self._outbox.collect()
            if made or self._closing.is_set() or self._given_up.is_set():
                self._more.set()
            await (asyncio.sleep(0) if made == AT_ONCE else self._spoken())

    async def _spoken(self) -> None:
        """Until there may be something new to say."""
        await asyncio.sleep(self._poll_s)

    async def _watch(self, bus: Bus) -> None:
        """Come back when the connection is lost, and raise BusError when it is of no use."""
        silent = hanging = calls = 0
        ping = asyncio.create_task(bus.flush(60))
        try:
            while not await _within(TURN_S, bus.closed):
                silent = 0 if ping.done() else silent + 1
                hanging = hanging + 1 if self._calls % 2 and self._calls == calls else 0
                calls = self._calls
                if silent >= SILENT_TURNS:
                    raise BusError(f"{self._url} is silent: no answer to a ping within {silent * TURN_S:g} s")
                if hanging >= HANGING_TURNS:
                    raise BusError(f"{self._url} answers pings, and a call hangs for {hanging * TURN_S:g} s")
                if ping.done():
                    ping.result()
                    ping = asyncio.create_task(bus.flush(60))
        finally:
            await end(ping, within_s=1)

    async def _speak(self, bus: Bus) -> None:
        """Send what the outbox has, in order; the first failure stops the rest until the log has been asked."""
        unsure, pause = bool(self._outbox.flying), RETRY_S
        one_by_one = False
        while not self._finished():
            self._calls += 1
            try:
                if unsure:
                    await self._ask(bus)
                    unsure = False
                letters = self._outbox.take()
                if len(letters) < BATCH_FROM or one_by_one:
                    for letter in letters:
                        await self._send(bus, letter)
                        self._calls += 2
                else:
                    await self._send_all(bus, letters)
                one_by_one = False
            except BusError as error:
                if not bus.connected:
                    return
                self._trouble.note(error, len(self._outbox))
                unsure = one_by_one = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)
                continue
            finally:
                self._calls += 1
            if letters:
                self._trouble.over(self.dropped)
                pause = RETRY_S
            else:
                self._more.clear()
                await self._more.wait()

    async def _send(self, bus: Bus, letter: Letter) -> None:
        with letter.span() if letter.span else tracing.OFF as span:
            self._last_sent = await bus.append(
                letter.subject, letter.data, message_id=letter.message_id, traceparent=span.traceparent
            )
        self._settle(letter.n)

    async def _send_all(self, bus: Bus, letters: list[Letter]) -> None:
        with contextlib.ExitStack() as open_spans:
            contexts = [
                open_spans.enter_context(letter.span()).traceparent if letter.span else "" for letter in letters
            ]
            self._batches += 1
            self._last_sent = await bus.append_all(
                letters,
                f"{letters[0].incarnation}-{letters[0].n}-{self._batches}",
                traceparents=contexts,
            )
        self._settle(letters[-1].n)

    async def _ask(self, bus: Bus) -> None:
        """Settle what the log has of what is under way. It went there in order: the last one found speaks for all. They
        are known by their message ids: no one else can make those, whatever says that it is of this learner."""
        if self._outbox.flying:
            async for message in self._mine(bus):
                self._settle(message.n)

    async def _mine(self, bus: Bus) -> AsyncIterator[LearnerMessage]:
        """This learner's messages behind the last that it knows to be in the log, which moves on with them."""
        head, wanted = await bus.head(self._run), [self._on.run, self._on.observation, self._on.receipt]
        if head > self._last_sent:
            async for event in bus.read(self._run, after=self._last_sent, until=head, subjects=wanted):
                if isinstance(event.body, LearnerMessage) and event.message_id == self._identity(event.body):
                    self._last_sent = event.seq
                    yield event.body

    def _settle(self, n: int) -> None:
        """The log has everything up to the learner's message `n`."""
        self._logged += sum(letter.n <= n and letter.subject == self._on.observation for letter in self._outbox.flying)
        self._outbox.settle(n)

    def _write(self, make: Make) -> Letter:
        """Raises ValueError for what the log would never take."""
        message = make()
        if isinstance(message, RunEnded):
            message = message.model_copy(update={"dropped_observations": self.dropped})
        wire = message.wire()
        if len(wire) > LOG_BYTES - HEADERS_BYTES:
            raise ValueError(f"a {type(message).__name__} of {len(wire):,} bytes; the log takes {LOG_BYTES:,}")
        span = spans.of(make, message, self._contexts) if tracing.on() else None
        return Letter(subject(self._on, message), wire, self._identity(message), message.incarnation, message.n, span)

    def _identity(self, message: LearnerMessage) -> str:
        return identity(message, self._secret)

    def _note_progress(self) -> None:
        self._progress += 1

    async def _take_in(self, bus: Bus) -> None:
        """Decisions come from the log and from nowhere else: a plain subscriber may see one twice, or not at all. Those
        that no one carries out end here: to unpack one would cost the training thread 150 µs."""
        while not self._listen.is_set():
            await asyncio.sleep(self._poll_s)
        wanted = [self._on.run, self._on.decision("*"), self._on.operator("*"), self._on.step("*")]
        async for logged in bus.read(self._run, after=self._last_read, subjects=wanted):
            event = self._keyring.judge(logged)
            self._last_read = event.seq
            if isinstance(event.body, RunStarted):
                self._beware(event.body, event.message_id)
            if isinstance(event.body, Malformed):
                log.warning("event %d on %s counts for nothing: %s", event.seq, event.subject, event.body.reason)
            if isinstance(event.body, Decision):
                if self._superseded or event.body.verdict != "adopted":
                    continue
                self._contexts.keep(event.body.id, event.traceparent)
            if isinstance(event.body, Decision | OperatorCommand | StepClosed):
                self._hand_over(event.seq, event.body)

    def _beware(self, run: RunStarted, message_id: str) -> None:
        """Of a second learner under this run's name: the log counts the newest one's words, and what is decided is for
        what that one measures. This one's training continues, by itself. One that began before it counts no more."""
        if message_id == self._identity(run):
            self._announced = True
            return
        if self._superseded or not self._announced:
            return
        self._superseded = True
        log.error(
            "another learner has begun run %r (incarnation %d): what this one says no longer counts, and decisions are "
            "no longer carried out here; training continues. Give each run its own name (run=, OVEN_RUN)",
            self._run,
            run.incarnation,
        )

    def _hand_over(self, seq: int, body: LogMessage) -> None:
        self._inbox.append(body)


def identity(message: LearnerMessage, secret: bytes) -> str:
    """The same however often it is sent, and nothing that others can foresee: a vote that carried it first would have
    the log take this message for a repeat."""
    told = f"{message.incarnation}-{message.n}"
    return f"{told}-{hashlib.blake2b(told.encode(), key=secret, digest_size=8).hexdigest()}"


def subject(on: Subjects, message: LearnerMessage) -> str:
    """Where it is in the log."""
    if isinstance(message, Observation):
        return on.observation
    return on.receipt if isinstance(message, Receipt) else on.run


async def _within(limit_s: float, event: asyncio.Event) -> bool:
    """Whether it is set before the limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            return await event.wait()
    return False

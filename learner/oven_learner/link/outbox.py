"""A bounded, ordered queue of the learner's messages that the log has not confirmed yet, and the log of outages.

Messages are built as soon as possible, so that the queue contains bytes and knows their size.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oven_core.errors import OvenError, reason
from oven_core.protocol.events import Entry
from oven_core.telemetry.span import Span
from oven_learner.link.link_interface import MessageFactory

log = logging.getLogger("oven.learner")

MAX_WAITING_BYTES = 64 << 20
"""Maximum size of the observations that wait during an outage, including Python's overhead. Beyond that, the oldest are
dropped and counted. Receipts and run events are never dropped."""
OVERHEAD_BYTES = 320
"""Memory of one waiting message in addition to its data. CPython 3.11 needs 295 bytes."""
MAX_UNBUILT = 100_000
"""Maximum number of messages that wait to be built. Beyond that, the oldest observations are dropped."""
BUILD_BATCH = 16
"""Maximum number of messages to build before other tasks may run (about 0.3 ms)."""
REPEAT_LOG_S = 60.0
"""Seconds without log output after which a reason for an outage is logged again."""
MAX_BATCH = 256
MAX_BATCH_BYTES = 1 << 20
"""Maximum number of messages, and approximate maximum of their bytes, that `take` returns at a time."""


class OutageLog:
    """Logs why messages cannot be sent. It repeats a reason only if it has logged nothing for REPEAT_LOG_S."""

    def __init__(self) -> None:
        self._began_at = self._logged_at = 0.0
        self._logged_reasons: set[str] = set()

    def record(self, error: BaseException, waiting_count: int) -> None:
        """Record a failed attempt and the number of waiting messages."""
        now, message = time.monotonic(), reason(error)
        self._began_at = self._began_at or now
        if message not in self._logged_reasons or now >= self._logged_at + REPEAT_LOG_S:
            self._logged_reasons.add(message)
            self._logged_at = now
            log.warning(
                "%s (for %.0f s, %d messages waiting); training continues",
                message,
                now - self._began_at,
                waiting_count,
                exc_info=None if isinstance(error, OvenError) else error,  # another error is a bug
            )

    def record_recovery(self, dropped_count: int) -> None:
        if self._began_at:
            duration_s = time.monotonic() - self._began_at
            log.warning("sending messages again after %.1f s; %d observations were dropped", duration_s, dropped_count)
            self._began_at, self._logged_reasons = 0.0, set()


@dataclass(slots=True, eq=False)
class QueuedMessage(Entry):
    """A message to be appended to the log. `span` creates its span in a trace, and is None without tracing."""

    incarnation: int
    n: int
    span: Callable[[], Span] | None


WaitingMessage = tuple[int, str, bytes, str, int, int, Callable[[], Span] | None]
"""A message's number in the queue, and the fields of QueuedMessage. It is a plain tuple, because Python's garbage
collector stops tracking tuples of plain values. A collection with 100,000 tracked objects would take tens of ms."""


class LearnerOutbox:
    """Three queues with a common order: unbuilt messages, observations, and messages that are never dropped.
    `in_flight` contains the messages that `take` returned last. They are not dropped, because they may already be in
    the log. `take` returns them again until `settle` removes them."""

    def __init__(self, build: Callable[[MessageFactory], QueuedMessage], max_bytes: int = MAX_WAITING_BYTES) -> None:
        """`build` builds a message. If it raises, the error is logged and the message is omitted."""
        self.dropped_count = 0
        self.in_flight: list[QueuedMessage] = []
        self._build = build
        self._max_bytes = max_bytes
        self._unbuilt: deque[tuple[MessageFactory, bool]] = deque()
        self._observations: deque[WaitingMessage] = deque()
        self._required: deque[WaitingMessage] = deque()
        self._bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of messages that the log has not confirmed."""
        return len(self._unbuilt) + len(self._observations) + len(self._required) + len(self.in_flight)

    def put(self, factory: MessageFactory, droppable: bool) -> None:
        self._unbuilt.append((factory, droppable))

    def collect(self) -> int:
        """Build at most BUILD_BATCH messages, and return their number. If too many messages are still unbuilt, drop the
        oldest observations."""
        for count in range(BUILD_BATCH):
            if not self._unbuilt:
                return count
            self._enqueue(*self._unbuilt[0])
            self._unbuilt.popleft()
        while len(self._unbuilt) > MAX_UNBUILT:
            factory, droppable = self._unbuilt[0]
            if droppable:
                self.dropped_count += 1
            else:
                self._enqueue(factory, droppable)
            self._unbuilt.popleft()
        return BUILD_BATCH

    def take(self) -> list[QueuedMessage]:
        """Return the oldest messages, at most MAX_BATCH and about MAX_BATCH_BYTES. Further calls return the same
        messages until `settle` has removed them."""
        if not self.in_flight:
            messages = self.in_flight = list[QueuedMessage]()
            size = 0
            while len(messages) < MAX_BATCH and size < MAX_BATCH_BYTES and (queue := self._oldest_queue()):
                messages.append(QueuedMessage(*queue[0][1:]))  # without its number in the queue
                cost = _cost(queue.popleft())
                size += cost
                if queue is self._observations:
                    self._bytes -= cost
        return self.in_flight

    def settle(self, n: int) -> None:
        """Remove the messages in flight up to `n`, because the log has them."""
        self.in_flight = [message for message in self.in_flight if message.n > n]

    def take_remaining(self) -> Iterator[QueuedMessage]:
        """Yield all messages in order and empty the outbox, when they can no longer be sent."""
        while self.collect():
            pass
        while messages := self.take():
            self.in_flight = []
            yield from messages

    def _oldest_queue(self) -> deque[WaitingMessage] | None:
        """Return the queue that contains the oldest message."""
        if self._observations and self._required:
            return self._observations if self._observations[0] < self._required[0] else self._required
        return self._observations or self._required or None

    def _enqueue(self, factory: MessageFactory, droppable: bool) -> None:
        try:
            message = self._build(factory)
        except Exception as error:
            log.error("cannot build a message, so it is omitted: %s", error)
            return
        self._count += 1
        headers = message.message_id, message.incarnation, message.n
        entry = (self._count, message.subject, message.data, *headers, message.span)
        if not droppable:
            self._required.append(entry)
            return
        self._observations.append(entry)
        self._bytes += _cost(entry)
        while self._bytes > self._max_bytes:
            self._bytes -= _cost(self._observations.popleft())
            self.dropped_count += 1


def _cost(entry: WaitingMessage) -> int:
    """Return the memory of a waiting message in bytes."""
    return len(entry[2]) + OVERHEAD_BYTES  # entry[2]: the data

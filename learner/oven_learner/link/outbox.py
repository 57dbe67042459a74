"""A bounded, ordered queue of the learner's messages that the log has not confirmed. It returns a few at a time.

Messages are built as soon as possible, so that the queue contains bytes and knows their size.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oven_core.bus.log_client import Entry
from oven_core.telemetry.span import Span
from oven_learner.link.link_interface import Make

log = logging.getLogger("oven.learner")

KEPT_BYTES = 64 << 20
"""Bytes of observations that wait during an outage, including Python's overhead. Beyond that the oldest are dropped and
counted. Receipts and run events are never dropped."""
OVERHEAD_BYTES = 320
"""Memory of one waiting message in addition to its bytes (tracemalloc, CPython 3.11: 295)."""
UNMADE = 100_000
"""Messages that wait to be built if the process is starved. Beyond that the oldest observations are dropped."""
AT_ONCE = 16
"""Maximum messages to build before other tasks may run (about 0.3 ms)."""
TAKEN = 256
TAKEN_BYTES = 1 << 20
"""Maximum messages, and approximate maximum bytes, returned at a time."""


@dataclass(slots=True, eq=False)
class QueuedMessage(Entry):
    """A message on its way to the log. `span` makes its span in a trace; None without tracing."""

    incarnation: int
    n: int
    span: Callable[[], Span] | None


Waiting = tuple[int, str, bytes, str, int, int, Callable[[], Span] | None]
"""A message's place in the order, then its fields. It is a plain tuple because Python's garbage collector stops
tracking those. Following a hundred thousand objects would stop the training thread for tens of milliseconds."""


class Outbox:
    """Three queues in one order: unbuilt messages, observations, and messages that are never dropped.

    `in_flight` holds the messages that were handed out last. They may be in the log already, so they are never dropped,
    and they are handed out again until `settle`.
    """

    def __init__(self, build: Callable[[Make], QueuedMessage], kept_bytes: int = KEPT_BYTES) -> None:
        """`build` makes a message. If it raises, the message is logged and omitted."""
        self.dropped = 0
        self.in_flight: list[QueuedMessage] = []
        self._build = build
        self._kept_bytes = kept_bytes
        self._unbuilt: deque[tuple[Make, bool]] = deque()
        self._observations: deque[Waiting] = deque()
        self._lasting: deque[Waiting] = deque()
        self._bytes = 0
        self._count = 0

    def __len__(self) -> int:
        """The number of messages that are not known to be in the log."""
        return len(self._unbuilt) + len(self._observations) + len(self._lasting) + len(self.in_flight)

    def put(self, make: Make, droppable: bool) -> None:
        self._unbuilt.append((make, droppable))

    def collect(self) -> int:
        """Build the next messages, at most AT_ONCE. Return their number."""
        for count in range(AT_ONCE):
            if not self._unbuilt:
                return count
            self._enqueue(*self._unbuilt[0])
            self._unbuilt.popleft()
        while len(self._unbuilt) > UNMADE:
            make, droppable = self._unbuilt[0]
            if droppable:
                self.dropped += 1
            else:
                self._enqueue(make, droppable)
            self._unbuilt.popleft()
        return AT_ONCE

    def take(self) -> list[QueuedMessage]:
        """Return the oldest messages, at most TAKEN and about TAKEN_BYTES. They stay the same until they are
        settled."""
        if not self.in_flight:
            messages: list[QueuedMessage] = []
            size = 0
            while len(messages) < TAKEN and size < TAKEN_BYTES and (queue := self._oldest_queue()):
                messages.append(QueuedMessage(*queue[0][1:]))
                self.in_flight = messages
                cost = _cost(queue.popleft())
                size += cost
                if queue is self._observations:
                    self._bytes -= cost
        return self.in_flight

    def settle(self, n: int) -> None:
        """Remove the messages of this incarnation up to `n`: the log has them."""
        self.in_flight = [message for message in self.in_flight if message.n > n]

    def take_rest(self) -> Iterator[QueuedMessage]:
        """Yield all messages in order and empty the outbox, to give up sending."""
        while self.collect():
            pass
        while messages := self.take():
            self.in_flight = []
            yield from messages

    def _oldest_queue(self) -> deque[Waiting] | None:
        if self._observations and self._lasting:
            return self._observations if self._observations[0] < self._lasting[0] else self._lasting
        return self._observations or self._lasting or None

    def _enqueue(self, make: Make, droppable: bool) -> None:
        try:
            message = self._build(make)
        except Exception as error:
            log.error("a message could not be made and is left out: %s", error)
            return
        self._count += 1
        waiting = (
            self._count,
            message.subject,
            message.data,
            message.message_id,
            message.incarnation,
            message.n,
            message.span,
        )
        if not droppable:
            self._lasting.append(waiting)
            return
        self._observations.append(waiting)
        self._bytes += _cost(waiting)
        while self._bytes > self._kept_bytes:
            self._bytes -= _cost(self._observations.popleft())
            self.dropped += 1


def _cost(waiting: Waiting) -> int:
    return len(waiting[2]) + OVERHEAD_BYTES

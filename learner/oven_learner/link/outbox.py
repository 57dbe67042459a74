"""What the learner has said and the log has not confirmed: in order, bounded, and handed over a few at a time.

A message is made as soon as it is seen, so that what waits is bytes, whose size is known.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oven_core.bus.log import Entry
from oven_core.telemetry.span import Span
from oven_learner.link.link_interface import Make

log = logging.getLogger("oven.learner")

KEPT_BYTES = 64 << 20
"""Of observations while the bus is away, with what Python adds; beyond that the oldest are dropped and counted.
Receipts and run events never are."""
OVERHEAD_BYTES = 320
"""What one waiting message costs beside its own bytes (tracemalloc, CPython 3.11: 295)."""
UNMADE = 100_000
"""Observations that were not even looked at, when who makes them is starved; beyond that the oldest are dropped."""
AT_ONCE = 16
"""Messages that are made before others have their turn again: some 0.3 ms."""
TAKEN = 256
TAKEN_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class QueuedMessage(Entry):
    """A message on its way to the log. `span` tells of it in a trace; None while no one traces."""

    incarnation: int
    n: int
    span: Callable[[], Span] | None


Waiting = tuple[int, str, bytes, str, int, int, Callable[[], Span] | None]
"""Its place in the order, then the fields of the message. A bare tuple of atoms, for Python's garbage collector lets go
of those: if it had to follow a hundred thousand objects, it would stop the training thread for tens of milliseconds."""


class Outbox:
    """Three queues in one order: what is not made yet, observations, and what is never dropped. `flying` has what was
    handed over last; it may be in the log already, so it is never dropped, and is handed over again until `settle`."""

    def __init__(self, write: Callable[[Make], QueuedMessage], kept_bytes: int = KEPT_BYTES) -> None:
        """`write` makes a message; one that it raises for is logged and left out, or it would are in the way."""
        self.dropped = 0
        self.flying: list[QueuedMessage] = []
        self._write = write
        self._kept_bytes = kept_bytes
        self._new: deque[tuple[Make, bool]] = deque()
        self._observations: deque[Waiting] = deque()
        self._lasting: deque[Waiting] = deque()
        self._bytes = 0
        self._places = 0

    def __len__(self) -> int:
        """How many are not known to be in the log."""
        return len(self._new) + len(self._observations) + len(self._lasting) + len(self.flying)

    def put(self, make: Make, droppable: bool) -> None:
        self._new.append((make, droppable))

    def collect(self) -> int:
        """Make the next few messages, at most AT_ONCE. How many there were."""
        for made in range(AT_ONCE):
            if not self._new:
                return made
            self._sort(*self._new[0])
            self._new.popleft()
        while len(self._new) > UNMADE:
            make, droppable = self._new[0]
            if droppable:
                self.dropped += 1
            else:
                self._sort(make, droppable)
            self._new.popleft()
        return AT_ONCE

    def take(self) -> list[QueuedMessage]:
        """The oldest, at most TAKEN messages and about TAKEN_BYTES; the same ones until they are settled."""
        if not self.flying:
            taken: list[QueuedMessage] = []
            size = 0
            while len(taken) < TAKEN and size < TAKEN_BYTES and (queue := self._oldest()):
                taken.append(QueuedMessage(*queue[0][1:]))
                self.flying = taken
                cost = _cost(queue.popleft())
                size += cost
                if queue is self._observations:
                    self._bytes -= cost
        return self.flying

    def settle(self, n: int) -> None:
        """The log has everything of this incarnation up to `n`."""
        self.flying = [message for message in self.flying if message.n > n]

    def rest(self) -> Iterator[QueuedMessage]:
        """Everything, in its order. The outbox is empty then: this is for who gives up sending."""
        while self.collect():
            pass
        while messages := self.take():
            self.flying = []
            yield from messages

    def _oldest(self) -> deque[Waiting] | None:
        if self._observations and self._lasting:
            return self._observations if self._observations[0] < self._lasting[0] else self._lasting
        return self._observations or self._lasting or None

    def _sort(self, make: Make, droppable: bool) -> None:
        try:
            message = self._write(make)
        except Exception as error:
            log.error("a message could not be made and is left out: %s", error)
            return
        self._places += 1
        waiting = (
            self._places,
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

"""Receives the log's events from the worker, and from those that replace it."""

from __future__ import annotations

from collections import deque

from oven_core.protocol.messages import LogMessage
from oven_learner.link.pipes import Inlet, SharedNumbers

EVENTS = SharedNumbers.EVENTS


class EventInbox:
    """The events for the training thread. The relay calls `connect`, and the training thread the other methods."""

    def __init__(self, numbers: SharedNumbers) -> None:
        """`numbers` counts the events, so that the pipe is read only if there are new ones."""
        self.last_seq = 0
        """The sequence number of the last received event."""
        self._cells = numbers.cells
        self._event_count = 0
        self._pipe = Inlet(-1)  # from the current worker
        self._next_pipes: deque[Inlet] = deque()  # from workers that started later
        self._received: deque[LogMessage] = deque()

    def connect(self, pipe: Inlet) -> None:
        """Read a new worker's pipe after those of the previous ones."""
        self._next_pipes.append(pipe)

    def receive(self) -> LogMessage | None:
        """Return the next event, if there is one."""
        if not self._received:
            event_count = self._cells[EVENTS]
            if event_count == self._event_count:
                return None
            self._event_count = event_count
            while self._next_pipes:
                self._pipe.close()
                self._pipe = self._next_pipes.popleft()
            for item in self._pipe.take():
                self.last_seq = item.seq
                self._received.append(item.body)
        return self._received.popleft() if self._received else None

    def close(self) -> None:
        """Close the pipes."""
        for pipe in (self._pipe, *self._next_pipes):
            pipe.close()

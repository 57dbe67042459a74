"""Sampled completions on their way from the training thread to the log's connection: bounded, the oldest go first.

The training thread appends to a deque. The relay, which looks for messages anyway, wakes a thread that makes a parcel
of what waits there (text, redaction, cuts), and writes finished ones to the pipe when no message of the log waits for
it. So neither a slow redaction nor a full pipe keeps a message of the log waiting, or the training.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.names import Subjects
from oven_learner.completions.message import wire_of
from oven_learner.link.pipes import Outlet, packed_atoms

log = logging.getLogger("oven.learner")

Parcel: TypeAlias = Callable[[], dict[str, Any]]
"""Makes a parcel, off the training thread."""
WAITING = 8
"""Samples that wait at each of the three places (unmade, for the pipe, for the server); beyond it the oldest go. As
many as the groups of one step."""
LAST_S = 0.5
"""How long the end of the training waits for samples that are being made."""


class SampleQueue:
    """In the training's process. `put` is the training thread's, `wake`, `send` and `close` are the relay's."""

    def __init__(self) -> None:
        self._unmade: deque[Parcel] = deque(maxlen=WAITING)
        self._made: deque[bytes] = deque(maxlen=WAITING)
        self._thread: threading.Thread | None = None
        self._asked = threading.Event()
        self._closed = False
        self._making = False
        self._told: set[str] = set()

    def put(self, make: Parcel) -> None:
        """An append, and nothing that wakes another thread."""
        self._unmade.append(make)

    @property
    def busy(self) -> bool:
        """Whether something waits, or is being made."""
        return bool(self._unmade or self._made or self._making)

    def wake(self) -> None:
        """Have what was put be made, if there is something."""
        if not self._unmade or self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._make_all, name="oven-completions", daemon=True)
            self._thread.start()
        self._asked.set()

    def send(self, outlet: Outlet) -> None:
        """Write what is made, as far as there is room."""
        while self._made:
            data = self._made[0]
            if not outlet.put(data):
                return
            if self._made and self._made[0] is data:  # else it has made room for a newer one meanwhile
                self._made.popleft()

    def close(self) -> None:
        """Nothing more is made. A function of the user's that hangs is left behind."""
        self._closed = True
        self._asked.set()

    def _make_all(self) -> None:
        while not self._closed:
            self._asked.wait()
            self._asked.clear()
            while self._unmade and not self._closed:
                self._making = True
                try:
                    self._make(self._unmade.popleft())
                except IndexError:  # the newest has put the oldest out, and there was no other
                    pass
                finally:
                    self._making = False

    def _make(self, make: Parcel) -> None:
        try:
            self._made.append(packed_atoms(make()))
        except Exception as error:  # its text may quote a prompt
            kind = type(error).__name__
            if kind not in self._told:
                self._told.add(kind)
                log.warning("a sample of completions is not shown: its redaction or its text raised %s", kind)


class SamplePublisher:
    """In the link's process: puts samples onto their subject while there is a connection, confirmed by no one."""

    def __init__(self, run: str) -> None:
        self._subject = Subjects(run).completions
        self._waiting: deque[bytes] = deque(maxlen=WAITING)
        self._more = asyncio.Event()

    def put(self, parcel: dict[str, Any]) -> None:
        """Take over a sample. One that is none, or too large even when it is cut, is left out."""
        try:
            wire = wire_of(parcel)
        except Exception as error:
            log.warning("a sample of completions is left out: %s", type(error).__name__)
            return
        if wire is not None:
            self._waiting.append(wire)
            self._more.set()

    async def run(self, bus: Bus) -> None:
        """Until it is cancelled. A connection that takes nothing is its owner's to end; what waits goes to the next."""
        while True:
            while self._waiting:
                wire = self._waiting[0]
                try:
                    await bus.publish(self._subject, wire)
                except BusError:
                    await asyncio.Event().wait()
                if self._waiting and self._waiting[0] is wire:
                    self._waiting.popleft()
            self._more.clear()
            await self._more.wait()

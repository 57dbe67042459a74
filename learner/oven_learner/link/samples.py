"""A bounded queue of sampled completions from the training thread to the bus. It drops the oldest samples first.

The training thread appends to a deque. The relay, which polls for messages anyway, wakes a thread that converts the
samples (text, redaction, truncation). Converted samples enter the pipe only when no log message is waiting. So neither
slow redaction nor a full pipe delays log messages or training.
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
from oven_learner.completions.sample import wire_of
from oven_learner.link.pipes import Outlet, packed_atoms

log = logging.getLogger("oven.learner")

Parcel: TypeAlias = Callable[[], dict[str, Any]]
"""Converts a sample into plain values, off the training thread."""
WAITING = 8
"""Samples that wait at each of three places (to be converted, for the pipe, for the server): about the groups of one
step. Beyond that the oldest are dropped."""
LAST_S = 0.5
"""Timeout in seconds for converting the last samples when training ends."""


class SampleQueue:
    """The queue in the training's process. The training thread calls `put`, the relay the other methods."""

    def __init__(self) -> None:
        self._unmade: deque[Parcel] = deque(maxlen=WAITING)
        self._packed: deque[bytes] = deque(maxlen=WAITING)
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._closed = False
        self._converting = False
        self._logged_kinds: set[str] = set()

    def put(self, make: Parcel) -> None:
        """Append a sample. This wakes no other thread."""
        self._unmade.append(make)

    @property
    def busy(self) -> bool:
        """Whether a sample waits or is being converted."""
        return bool(self._unmade or self._packed or self._converting)

    def wake(self) -> None:
        """Have waiting samples converted."""
        if not self._unmade or self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._convert_all, name="oven-completions", daemon=True)
            self._thread.start()
        self._work.set()

    def send(self, outlet: Outlet) -> None:
        """Write converted samples, as far as there is room."""
        while self._packed:
            data = self._packed[0]
            if not outlet.put(data):
                return
            if self._packed and self._packed[0] is data:  # otherwise a newer one has replaced it
                self._packed.popleft()

    def close(self) -> None:
        """Convert no more samples. A hanging function of the user's is left behind."""
        self._closed = True
        self._work.set()

    def _convert_all(self) -> None:
        while not self._closed:
            self._work.wait()
            self._work.clear()
            while self._unmade and not self._closed:
                self._converting = True
                try:
                    self._convert(self._unmade.popleft())
                except IndexError:  # a newer sample has replaced the only one
                    pass
                finally:
                    self._converting = False

    def _convert(self, make: Parcel) -> None:
        try:
            self._packed.append(packed_atoms(make()))
        except Exception as error:  # its text may quote a prompt
            kind = type(error).__name__
            if kind not in self._logged_kinds:
                self._logged_kinds.add(kind)
                log.warning("a sample of completions is not shown: its redaction or its text raised %s", kind)


class SamplePublisher:
    """Publishes samples in the link's process while there is a connection. They are not confirmed."""

    def __init__(self, run: str) -> None:
        self._subject = Subjects(run).completions
        self._waiting: deque[bytes] = deque(maxlen=WAITING)
        self._new_samples = asyncio.Event()

    def put(self, parcel: dict[str, Any]) -> None:
        """Queue a sample. An invalid one, or one that is too large even when cut, is omitted."""
        try:
            wire = wire_of(parcel)
        except Exception as error:
            log.warning("a sample of completions is left out: %s", type(error).__name__)
            return
        if wire is not None:
            self._waiting.append(wire)
            self._new_samples.set()

    async def run(self, bus: Bus) -> None:
        """Publish until cancelled. After a failure, wait for the session to replace the connection."""
        while True:
            while self._waiting:
                wire = self._waiting[0]
                try:
                    await bus.publish(self._subject, wire)
                except BusError:
                    await asyncio.Event().wait()
                if self._waiting and self._waiting[0] is wire:
                    self._waiting.popleft()
            self._new_samples.clear()
            await self._new_samples.wait()

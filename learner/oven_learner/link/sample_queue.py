"""Bounded queues of completion samples, from the training thread to the bus. They drop the oldest samples first.

The training thread appends to a deque. The relay, which polls for messages anyway, wakes a thread that converts the
samples (text, redaction, truncation). Converted samples are written to the pipe only while no log message is waiting.
Therefore, neither a slow redaction nor a full pipe delays log messages or training.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from oven_core.errors import BusError
from oven_core.protocol.names import Subjects
from oven_learner.completions.sample_message import encode_group
from oven_learner.link.pipes import Outlet, pack_plain

if TYPE_CHECKING:  # the training's process does not import nats-py
    from oven_core.bus.connection import Bus

log = logging.getLogger("oven.learner")

SampleConverter: TypeAlias = Callable[[], dict[str, Any]]
"""A function that returns a sample as plain values. It is called outside the training thread."""
MAX_WAITING = 8
"""Maximum number of samples in each of three queues (for the conversion, the pipe and the server), about as many as
there are groups in a step. Beyond that, the oldest are dropped."""
FINAL_TIMEOUT_S = 0.5
"""Maximum seconds to wait for the last samples to be converted when training ends."""


class SampleQueue:
    """The queue in the training's process. The training thread calls `put`, and the relay calls the other methods."""

    def __init__(self) -> None:
        self._unconverted: deque[SampleConverter] = deque(maxlen=MAX_WAITING)
        self._converted: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._closed = False
        self._converting = False
        self._logged_kinds: set[str] = set()

    def put(self, convert: SampleConverter) -> None:
        """Append a sample, without waking another thread."""
        self._unconverted.append(convert)

    @property
    def has_pending(self) -> bool:
        """Whether a sample is waiting or being converted."""
        return bool(self._unconverted or self._converted or self._converting)

    def wake(self) -> None:
        """Wake the thread that converts samples, if there are any."""
        if not self._unconverted or self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._convert_all, name="oven-completions", daemon=True)
            self._thread.start()
        self._work.set()

    def send(self, outlet: Outlet) -> None:
        """Write converted samples, as many as fit into the pipe."""
        while self._converted:
            data = self._converted[0]
            if not outlet.put(data):
                return
            if self._converted and self._converted[0] is data:  # otherwise, a newer sample has pushed it out
                self._converted.popleft()

    def close(self) -> None:
        """Stop converting samples. Do not wait for a user's function that is stuck."""
        self._closed = True
        self._work.set()

    def _convert_all(self) -> None:
        while not self._closed:
            self._work.wait()
            self._work.clear()
            while self._unconverted and not self._closed:
                self._converting = True
                try:
                    self._convert(self._unconverted.popleft())
                finally:
                    self._converting = False

    def _convert(self, convert: SampleConverter) -> None:
        try:
            self._converted.append(pack_plain(convert()))
        except Exception as error:  # log only its class, because its message may quote a prompt
            kind = type(error).__name__
            if kind not in self._logged_kinds:
                self._logged_kinds.add(kind)
                log.warning("a sample of completions is not shown, because its conversion or redaction raised %s", kind)


class SamplePublisher:
    """Publishes samples from the worker process while there is a connection. The server does not confirm them."""

    def __init__(self, run: str) -> None:
        self._subject = Subjects(run).completions
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._new_samples = asyncio.Event()

    def put(self, fields: dict[str, Any]) -> None:
        """Queue a sample. Omit it if it is invalid, or too large even after truncation."""
        try:
            wire = encode_group(fields)
        except Exception as error:
            log.warning("a sample of completions is omitted: %s", type(error).__name__)
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

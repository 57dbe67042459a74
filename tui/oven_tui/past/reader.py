"""Reads a long log.jsonl in a thread of the monitor: a preview at once, then the whole log, verified and folded.

The preview takes the same fraction of a second for any length. It consists of the log's beginning, its end, and evenly
spaced observations in between. Its counts are wrong, because decisions in the middle are missing; the `preview` flag
marks this.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from oven_core.errors import OvenError, reason
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView

LONG_BYTES = 4 << 20
"""Size of a log from which it is read in a thread. Shorter logs are folded within half a second."""
CHUNK_EVENTS = 512
"""Events between two checks for progress, about 40 ms."""
PROGRESS_S = 0.25
PLACES = 1500
"""Positions with OBSERVATIONS each: three for every dot of a chart on 200 columns."""
OBSERVATIONS = 3
WINDOW = 8 << 10
"""Bytes to read at a position: several observations of 30 metrics."""
HEAD = 1 << 20
"""Bytes to search for the run's start and its agents' joining; the search ends with the first observations."""
HEAD_EVENTS = 400
TAIL = 1 << 20
"""Bytes at the end that are folded completely: the newest thousand events or two."""
_MARK = b'"type": "Observation"'


@dataclass
class Fold:
    """A view of the first part of a log, the keys to verify the rest with, and the part's length in bytes."""

    view: MonitorView
    keyring: Keyring
    offset: int = 0

    @classmethod
    def empty(cls, folder: RunFolder) -> Fold:
        return cls(MonitorView(), Keyring(folder.pin()))

    @property
    def seq(self) -> int:
        """The sequence of its last event."""
        return self.view.run.seq

    def feed(self, event: Event) -> Event:
        event = self.keyring.verify(event)
        self.view.feed(event)
        return event


class DecisionPosition(NamedTuple):
    seq: int
    tick: int


@dataclass(frozen=True, slots=True)
class Preview:
    """A view to show at once. Nothing in it was verified."""

    view: MonitorView


@dataclass(frozen=True, slots=True)
class Progress:
    """The share of the log that was verified and folded, from 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A fold to go back to, compressed because only few of them are ever used."""

    seq: int
    tick: int
    step: int
    """The furthest step so far."""
    decisions: tuple[DecisionPosition, ...]
    """The decisions since the previous checkpoint."""
    packed: bytes

    def unpack(self) -> Fold:
        fold: Fold = pickle.loads(zlib.decompress(self.packed))
        return fold


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole log, verified."""

    fold: Fold
    decisions: tuple[DecisionPosition, ...] = ()
    """The decisions since the last checkpoint."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the log could not be read to its end. The readable part came as Whole."""

    reason: str


Frame: TypeAlias = Preview | Progress | Checkpoint | Whole | Failed


def is_long(folder: RunFolder) -> bool:
    """Return whether the run has a log.jsonl that takes long to fold."""
    try:
        return folder.export.stat().st_size > LONG_BYTES
    except OSError:
        return False


async def frames(folder: RunFolder, *, growing: bool = False, checkpoints: int = 0) -> AsyncGenerator[Frame]:
    """Read the log in a thread and yield its frames. The thread ends with the iteration."""
    loop, queue, stopped = asyncio.get_running_loop(), asyncio.Queue[Frame | None](), threading.Event()

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the monitor has quit
            for frame in read(folder, growing=growing, checkpoints=checkpoints, stopped=stopped.is_set):
                loop.call_soon_threadsafe(queue.put_nowait, frame)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=run, name=f"reading the log of {folder.run}", daemon=True).start()
    try:
        while (frame := await queue.get()) is not None:
            yield frame
    finally:
        stopped.set()


def read(
    folder: RunFolder, *, growing: bool = False, checkpoints: int = 0, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Frame]:
    """Yield a preview, progress, about as many checkpoints as asked for, and the whole log, or why it is unreadable.

    `growing`: the log is being written, so an incomplete last line is ignored. Ends early when `stopped` returns True.
    """
    fold, decisions, fault = None, list[DecisionPosition](), ""
    furthest, due, reported = 0, 0, time.monotonic()
    try:
        size = max(1, folder.export.stat().st_size)
        yield Preview(preview(folder))
        fold, log = Fold.empty(folder), LogFile(folder, growing=growing)
        for number, event in enumerate(map(fold.feed, log), 1):
            fold.offset = log.offset
            if isinstance(event.body, Decision):
                decisions.append(DecisionPosition(event.seq, fold.view.run.tick))
            if number % CHUNK_EVENTS:
                continue
            if stopped():
                return
            furthest = max(furthest, fold.view.run.step)
            if checkpoints and fold.offset >= due:
                due = fold.offset + size // checkpoints
                packed = zlib.compress(pickle.dumps(fold, 5), 1)
                yield Checkpoint(fold.seq, fold.view.run.tick, furthest, tuple(decisions), packed)
                decisions.clear()
            if time.monotonic() - reported > PROGRESS_S:
                reported = time.monotonic()
                yield Progress(min(1.0, fold.offset / size))
    except (OvenError, OSError, ValueError) as error:
        fault = reason(error)
    if fold is not None and (fold.seq or not fault):
        yield Whole(fold, tuple(decisions))
    if fault:
        yield Failed(fault)


def preview(folder: RunFolder) -> MonitorView:
    """Return the preview, without verifying anything. Raises OSError."""
    view, keyring = MonitorView(), Keyring(folder.pin(), check=False)
    view.preview = True
    for line in _lines(folder):
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # the reader behind says what is wrong with it
        view.feed(keyring.verify(event))
    return view


def _lines(folder: RunFolder) -> Iterator[bytes]:
    with folder.export.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(min(size, HEAD)).splitlines(keepends=True)[:HEAD_EVENTS]
        yield from head
        first, last = sum(map(len, head)), max(0, size - TAIL)
        for number in range(PLACES):
            position = first + (last - first) * number // PLACES
            if position >= last:
                break
            file.seek(position)
            lines = file.read(WINDOW).splitlines()[1:-1]
            yield from [line for line in lines if _MARK in line[:600]][:OBSERVATIONS]
        file.seek(last)
        yield from file.read().splitlines()[1 if last else 0 :]

"""Reads a long log.jsonl in a thread of the monitor: a preview at once, then the whole log, verified and folded."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from oven_core.errors import OvenError, reason
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.fold import DecisionPosition, Fold, Folding
from oven_tui.past.preview import preview

LONG_BYTES = 4 << 20
"""Size of a log from which it is read in a thread. Shorter logs are folded within half a second."""
PROGRESS_S = 0.25


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
    folding = Folding(folder, growing=growing)
    try:
        size = max(1, folder.export.stat().st_size)
        yield Preview(preview(folder))
        yield from _fold(folding, size, checkpoints, stopped)
    except (OvenError, OSError, ValueError) as error:
        if folding.fold is not None and folding.fold.seq:
            yield Whole(folding.fold, tuple(folding.decisions))
        yield Failed(reason(error))


def _fold(folding: Folding, size: int, checkpoints: int, stopped: Callable[[], bool]) -> Iterator[Frame]:
    furthest, due, reported = 0, 0, time.monotonic()
    for fold in folding:
        if stopped():
            return
        furthest = max(furthest, fold.view.run.step)
        if checkpoints and fold.offset >= due:
            due = fold.offset + size // checkpoints
            packed = zlib.compress(pickle.dumps(fold, 5), 1)
            yield Checkpoint(fold.seq, fold.view.run.tick, furthest, tuple(folding.decisions), packed)
            folding.decisions.clear()
        if time.monotonic() - reported > PROGRESS_S:
            reported = time.monotonic()
            yield Progress(min(1.0, fold.offset / size))
    assert folding.fold is not None
    yield Whole(folding.fold, tuple(folding.decisions))

"""Reads a long log.jsonl in a thread: first a preview, then the whole verified log.

The preview takes a fraction of a second for a log of any length. It contains the beginning and the end of the log, and
evenly spaced observations in between. Its counts are wrong because decisions are missing, so `is_preview` is set."""

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
"""Minimum size of a log to read in a thread. Shorter logs are read within half a second."""
CHUNK_EVENTS = 512
"""Number of events between checks whether to stop or to report. Reading them takes about 40 ms."""
PROGRESS_S = 0.25
"""Seconds between progress reports."""
SAMPLE_POSITIONS = 1500
"""Number of positions from which the preview reads observations."""
OBSERVATIONS_PER_POSITION = 3
"""Maximum observations per position. In total, a chart with 200 columns gets enough for every dot."""
WINDOW_BYTES = 8 << 10
"""Bytes to read at a position, enough for several observations of 30 metrics."""
HEAD_BYTES = 1 << 20
"""Maximum bytes to read at the beginning, where the agents join and the run starts."""
HEAD_EVENTS = 400
"""Maximum events to read at the beginning."""
TAIL_BYTES = 1 << 20
"""Bytes to read completely at the end, with the newest one or two thousand events."""
_OBSERVATION_MARKER = b'"type": "Observation"'  # within the first 600 bytes of a line


@dataclass
class ReplayState:
    """The state after reading a part of a log: the view, the keys to verify the rest with, and the offset in bytes."""

    view: MonitorView
    keyring: Keyring
    offset: int = 0

    @classmethod
    def empty(cls, folder: RunFolder) -> ReplayState:
        return cls(MonitorView(), Keyring(folder.pin()))

    @property
    def seq(self) -> int:
        """Return the sequence number of the last event."""
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
    """A view to show immediately. Nothing in it was verified."""

    view: MonitorView


@dataclass(frozen=True, slots=True)
class Progress:
    """The share of the log that was read and verified, from 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of the replay to go back to. It is compressed because most checkpoints are never used."""

    seq: int
    tick: int
    step: int
    """The highest step so far."""
    decisions: tuple[DecisionPosition, ...]
    """The decisions since the previous checkpoint."""
    packed: bytes

    def unpack(self) -> ReplayState:
        state: ReplayState = pickle.loads(zlib.decompress(self.packed))
        return state


@dataclass(frozen=True, slots=True)
class FullLog:
    """The state after the whole log, verified."""

    state: ReplayState
    decisions: tuple[DecisionPosition, ...] = ()
    """The decisions since the last checkpoint."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why the log could not be read to its end. A FullLog with the readable part comes first."""

    reason: str


Frame: TypeAlias = Preview | Progress | Checkpoint | FullLog | ReadFailure


def is_long(folder: RunFolder) -> bool:
    """Return whether the run's log.jsonl is too long to read without a thread."""
    try:
        return folder.export.stat().st_size > LONG_BYTES
    except OSError:
        return False


async def stream_frames(folder: RunFolder, *, growing: bool = False, checkpoints: int = 0) -> AsyncGenerator[Frame]:
    """Read the log in a thread and yield its frames. The thread stops with the iteration."""
    loop, queue, stop = asyncio.get_running_loop(), asyncio.Queue[Frame | None](), threading.Event()

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the monitor has quit, and the loop is closed
            for frame in read_frames(folder, growing=growing, checkpoints=checkpoints, should_stop=stop.is_set):
                loop.call_soon_threadsafe(queue.put_nowait, frame)
            loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=run, name=f"reading the log of {folder.run}", daemon=True).start()
    try:
        while (frame := await queue.get()) is not None:
            yield frame
    finally:
        stop.set()


def read_frames(
    folder: RunFolder, *, growing: bool = False, checkpoints: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Frame]:
    """Yield a preview, progress reports, about `checkpoints` checkpoints, the full log, and a failure if there is one.
    `growing` means that the log is being written, so an incomplete last line is ignored. Reading stops early when
    `should_stop` returns True."""
    state, decisions, failure = None, list[DecisionPosition](), ""
    max_step, next_checkpoint, reported_at = 0, 0, time.monotonic()
    try:
        size = max(1, folder.export.stat().st_size)
        yield Preview(build_preview(folder))
        state, log = ReplayState.empty(folder), LogFile(folder, growing=growing)
        for number, event in enumerate(map(state.feed, log), 1):
            state.offset = log.offset
            if isinstance(event.body, Decision):
                decisions.append(DecisionPosition(event.seq, state.view.run.tick))
            if number % CHUNK_EVENTS:
                continue
            if should_stop():
                return
            max_step = max(max_step, state.view.run.step)
            if checkpoints and state.offset >= next_checkpoint:
                next_checkpoint = state.offset + size // checkpoints
                packed = zlib.compress(pickle.dumps(state, 5), 1)
                yield Checkpoint(state.seq, state.view.run.tick, max_step, tuple(decisions), packed)
                decisions.clear()
            if time.monotonic() - reported_at > PROGRESS_S:
                reported_at = time.monotonic()
                yield Progress(min(1.0, state.offset / size))
    except (OvenError, OSError, ValueError) as error:
        failure = reason(error)
    if state is not None and (state.seq or not failure):
        yield FullLog(state, tuple(decisions))
    if failure:
        yield ReadFailure(failure)


def build_preview(folder: RunFolder) -> MonitorView:
    """Return the preview, which is not verified. Raises OSError."""
    view, keyring = MonitorView(), Keyring(folder.pin(), check=False)
    view.is_preview = True
    for line in _lines(folder):
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # reading the whole log will report the error
        view.feed(keyring.verify(event))
    return view


def _lines(folder: RunFolder) -> Iterator[bytes]:
    with folder.export.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(min(size, HEAD_BYTES)).splitlines(keepends=True)[:HEAD_EVENTS]
        yield from head
        first, last = sum(map(len, head)), max(0, size - TAIL_BYTES)
        for number in range(SAMPLE_POSITIONS):
            position = first + (last - first) * number // SAMPLE_POSITIONS
            if position >= last:
                break
            file.seek(position)
            lines = file.read(WINDOW_BYTES).splitlines()[1:-1]
            yield from [line for line in lines if _OBSERVATION_MARKER in line[:600]][:OBSERVATIONS_PER_POSITION]
        file.seek(last)
        yield from file.read().splitlines()[1 if last else 0 :]

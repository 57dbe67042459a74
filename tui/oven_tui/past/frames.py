"""Frames between the process that folds a log and the one that shows it: a length, and a pickle of one of these."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.fold import Decided, Fold

LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Preview:
    """What can be shown at once; nothing of it was checked."""

    view: MonitorView


@dataclass(frozen=True, slots=True)
class Progress:
    """Share of the log that was checked and folded, 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A fold on the way, for going back to: packed, since only few are looked at."""

    seq: int
    tick: int
    step: int
    """The furthest step up to here."""
    decided: tuple[Decided, ...]
    """The decisions since the checkpoint before."""
    packed: bytes


@dataclass(frozen=True, slots=True)
class Whole:
    """All of the log, checked; from the cache or anew."""

    fold: Fold
    cached: bool
    decided: tuple[Decided, ...] = ()
    """The decisions since the last checkpoint."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why the log could not be read to its end. What was read before it came as Whole."""

    reason: str


Frame: TypeAlias = Preview | Progress | Checkpoint | Whole | Failed


def write(out: BinaryIO, frame: Frame) -> None:
    """Raises BrokenPipeError when no one reads any more."""
    data = pickle.dumps(frame, 5)
    out.write(LENGTH.pack(len(data)) + data)
    out.flush()


def read(source: BinaryIO) -> Frame | None:
    """The next one; None at the end, and where the last one was cut."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = source.read(length)
    if len(data) < length:
        return None
    frame: Frame = pickle.loads(data)
    return frame

"""A finished run's starts and observations in a file that several processes read at once, from any place on."""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from oven_agents.sdk.session import KEPT
from oven_core.protocol.messages import Observation, RunStarted

BLOCK = KEPT
"""Observations between two places that reading can begin at: with one block before it a tick has its whole window."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Index:
    """Where the blocks begin: the file's position, and which start is in force there (−1: none yet)."""

    path: Path
    places: list[tuple[int, int]] = field(default_factory=list)
    starts: list[bytes] = field(default_factory=list)
    """RunStarted, as on the wire."""

    def read(self, first: int, end: int) -> Iterator[RunStarted | Observation]:
        """The messages of the blocks `first` to `end` (exclusive), the start that is in force at the first before
        them. Observations come unvalidated: they were validated when they were written."""
        for entry in self._entries(first, end):
            yield RunStarted.model_validate_json(self.starts[entry]) if isinstance(entry, int) else _made(*entry)

    def metrics(self) -> Iterator[tuple[int, dict[str, float]]]:
        """(tick, measurements) of all observations."""
        for entry in self._entries(0, len(self.places)):
            if not isinstance(entry, int):
                yield entry[2], entry[5]

    def _entries(self, first: int, end: int) -> Iterator[Any]:
        with self.path.open("rb") as file:
            place, start = self.places[first]
            file.seek(place)
            if start >= 0:
                yield start
            until = self.places[end][0] if end < len(self.places) else None
            while until is None or file.tell() < until:
                head = file.read(_LENGTH.size)
                if not head:
                    return
                yield marshal.loads(file.read(*_LENGTH.unpack(head)))


class ObservationFile:
    """Writes one. The path must stay until the last reader is done."""

    def __init__(self, path: Path) -> None:
        self.index = Index(path)
        self.ticks = 0
        """Observations so far."""
        self._out: IO[bytes] = path.open("wb")

    def add(self, message: RunStarted | Observation) -> None:
        if isinstance(message, RunStarted):
            self.index.starts.append(message.wire())
            self._write(len(self.index.starts) - 1)
            return
        if self.ticks % BLOCK == 0:
            self.index.places.append((self._out.tell(), len(self.index.starts) - 1))
        self.ticks += 1
        self._write((message.incarnation, message.n, message.tick, message.step, message.progress, message.metrics))

    def flush(self) -> None:
        """What was added can be read by others now."""
        self._out.flush()

    def close(self) -> None:
        self._out.close()

    def _write(self, entry: int | tuple[int, int, int, int, float, dict[str, float]]) -> None:
        data = marshal.dumps(entry)
        self._out.write(_LENGTH.pack(len(data)) + data)


def _made(incarnation: int, n: int, tick: int, step: int, progress: float, metrics: dict[str, float]) -> Observation:
    return Observation.model_construct(
        incarnation=incarnation, n=n, tick=tick, step=step, progress=progress, metrics=metrics
    )

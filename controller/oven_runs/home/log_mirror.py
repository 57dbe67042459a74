"""log.jsonl as it grows: one line per event, written beside the store while the run continues.

It is written by what follows the log anyway, flushed now and then and not forced to the disk: the store is the
truth, and this is what is left should the store be lost. Where there is a file already, what is taken is held against
it first; so the same class continues with a run's file, finishes it, and finds where it says something else than the
store.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from oven_core.protocol.events import Event

FLUSH_BYTES = 1 << 20


class Mirror:
    """Feed it the log's events in order, unjudged. A failing disk does not raise: `fault` says why it takes no more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq = 0
        """Of the last event that it took."""
        self.fault = ""
        self.aside: Path | None = None
        """Where the file is that said something else; None while none did."""
        self.differs = 0
        """The first event of which that one said something else."""
        self.beyond = 0
        """Events that the file holds and that did not come."""
        self._rest = bytearray()
        self._end = 0  # of the last whole line on the disk that counts
        self._old: BinaryIO | None = None
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._old = path.open("rb")
        except OSError as error:
            self._file = -1
            self._failed(error)

    def take(self, event: Event) -> None:
        self.seq = event.seq
        if self.fault or self._file < 0:
            return
        line = event.line().encode() + b"\n"
        try:
            if self._old is not None and self._held(event.seq, line):
                return
        except OSError as error:
            self._failed(error)
            return
        self._rest += line
        if len(self._rest) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """What was taken is in the file."""
        if self.fault or self._file < 0 or not self._rest:
            return
        try:
            view = memoryview(bytes(self._rest))
            at = self._end
            while view:
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            self._failed(error)
        else:
            self._end = at
        self._rest.clear()

    def finish(self) -> None:
        """All has come: it is on the disk. Raises OSError where it could not be."""
        self.flush()
        if not self.fault and self._old is not None:
            whole = [len(line) for line in self._old if line.endswith(b"\n")]
            self.beyond = len(whole)
            os.ftruncate(self._file, self._end + sum(whole))
        if self.fault:
            raise OSError(self.fault)
        os.fsync(self._file)

    def close(self) -> None:
        self.flush()
        if self._old is not None:
            self._old.close()
            self._old = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _held(self, seq: int, line: bytes) -> bool:
        """Whether the file has this line already. It ends, or differs, at most once: then lines are written."""
        assert self._old is not None
        for old in self._old:
            if not old.endswith(b"\n"):
                break  # cut: it was killed while it wrote
            if old == line:
                self._end += len(old)
                return True
            if _seq(old) >= seq:
                self._set_aside(seq)
                return False
            self._end += len(old)  # what the store no longer has
        self._old.close()
        self._old = None
        os.ftruncate(self._file, self._end)
        return False

    def _set_aside(self, seq: int) -> None:
        """The store holds. Both are kept: this file under another name, and one that begins like it."""
        assert self._old is not None
        number = 1
        while (aside := self.path.with_name(f"{self.path.stem}.differs-{number}.jsonl")).exists():
            number += 1
        self.path.rename(aside)
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self._old.seek(0)
        left, at = self._end, 0
        while left and (part := self._old.read(min(left, FLUSH_BYTES))):
            os.pwrite(self._file, part, at)
            left, at = left - len(part), at + len(part)
        self._old.close()
        self._old, self.aside, self.differs = None, aside, seq

    def _failed(self, error: OSError) -> None:
        self.fault = error.strerror or str(error)
        self._rest.clear()
        if self._file >= 0 and self._old is None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)


def _seq(line: bytes) -> int:
    """The event's; larger than any for what is not an event's line."""
    try:
        return int(line[: line.index(b",")].rpartition(b" ")[2])
    except ValueError:
        return 1 << 62

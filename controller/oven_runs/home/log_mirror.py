"""Copy the log to log.jsonl during the run, one line per event, as a backup of the store.

The mirror runs in a process that already follows the log. It writes the file regularly but does not force it to the
disk, because the store is authoritative. If the file already exists, its lines are first compared with the events. So
the same class can continue a file, complete it, and find differences from the store.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from oven_core.protocol.events import Event

FLUSH_BYTES = 1 << 20


class Mirror:
    """A growing copy of the log. Pass the unverified events to `add` in order. If writing fails, `fault` says why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seq = 0
        """Sequence number of the last event passed to `add`."""
        self.fault = ""
        self.renamed_file: Path | None = None
        """The old file that differed from the store, under its new name."""
        self.first_different_seq = 0
        """Sequence number of the first event that differed."""
        self.extra_events = 0
        """Number of events in the file that are not in the log."""
        self._unwritten = bytearray()
        self._end = 0  # offset after the last valid line on the disk
        self._existing: BinaryIO | None = None  # the file as it was found, until the comparison ends
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._existing = path.open("rb")
        except OSError as error:
            self._file = -1
            self._fail(error)

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.seq = event.seq
        if self.fault or self._file < 0:
            return
        line = event.line().encode() + b"\n"
        try:
            if self._existing is not None and self._matches_existing(event.seq, line):
                return
        except OSError as error:
            self._fail(error)
            return
        self._unwritten += line
        if len(self._unwritten) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events to the file."""
        if self.fault or self._file < 0 or not self._unwritten:
            return
        try:
            view = memoryview(bytes(self._unwritten))
            offset = self._end
            while view:
                written_bytes = os.pwrite(self._file, view, offset)
                view, offset = view[written_bytes:], offset + written_bytes
        except OSError as error:
            self._fail(error)
        else:
            self._end = offset
        self._unwritten.clear()

    def finish(self) -> None:
        """Count extra events, remove an incomplete last line, and force the file to the disk. Raises OSError."""
        self.flush()
        if not self.fault and self._existing is not None:
            lengths = [len(line) for line in self._existing if line.endswith(b"\n")]
            self.extra_events = len(lengths)
            os.ftruncate(self._file, self._end + sum(lengths))
        if self.fault:
            raise OSError(self.fault)
        os.fsync(self._file)

    def close(self) -> None:
        self.flush()
        if self._existing is not None:
            self._existing.close()
            self._existing = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _matches_existing(self, seq: int, line: bytes) -> bool:
        """Advance in the existing file to this line, and return whether the file has it. If not, the comparison ends
        here, and this line and all later ones are written."""
        assert self._existing is not None
        for existing in self._existing:
            if not existing.endswith(b"\n"):
                break  # the line is incomplete, because the writer was killed
            if existing == line:
                self._end += len(existing)
                return True
            if _seq_of(existing) >= seq:
                self._rename_existing(seq)
                return False
            self._end += len(existing)  # an event that the store no longer has
        self._existing.close()
        self._existing = None
        os.ftruncate(self._file, self._end)
        return False

    def _rename_existing(self, seq: int) -> None:
        """Rename the file, and start a new one with the lines that agree with the store."""
        assert self._existing is not None
        number = 1
        while (new_path := self.path.with_name(f"{self.path.stem}.differs-{number}.jsonl")).exists():
            number += 1
        self.path.rename(new_path)
        os.close(self._file)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        self._existing.seek(0)
        remaining, offset = self._end, 0
        while remaining and (chunk := self._existing.read(min(remaining, FLUSH_BYTES))):
            os.pwrite(self._file, chunk, offset)
            remaining, offset = remaining - len(chunk), offset + len(chunk)
        self._existing.close()
        self._existing, self.renamed_file, self.first_different_seq = None, new_path, seq

    def _fail(self, error: OSError) -> None:
        self.fault = error.strerror or str(error)
        self._unwritten.clear()
        if self._file >= 0 and self._existing is None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)


def _seq_of(line: bytes) -> int:
    """Return the sequence number of a line's event. For an invalid line, return one larger than all others."""
    try:
        return int(line[: line.index(b",")].rpartition(b" ")[2])
    except ValueError:
        return 1 << 62

"""The tails of a run's process logs: the end of each file, and then what is added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TAIL: Final = 128 * 1024
"""Bytes of a file to read at first, because a log may have gigabytes."""
AT_ONCE: Final = 256 * 1024
"""Bytes of a file to read at a time. Output of a faster process is skipped."""
LONGEST: Final = 8192
"""Bytes without an end of line after which they count as a line."""


class ProcessLogs:
    """Call `read` from time to time, outside of painting, because it reads files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Tail] = {}

    def read(self) -> list[tuple[str, list[str]]]:
        """Return (process, new lines) by name; nothing without a folder of logs, or if none can be read."""
        found = []
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.log")):
                tail = self._files.setdefault(path.stem, _Tail(path))
                with contextlib.suppress(OSError):
                    if lines := list(tail.read()):
                        found.append((path.stem, lines))
        return found


class _Tail:
    """One file. A file that became shorter is read from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at: int | None = None
        self._rest = b""

    def read(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if self._at is None or size < self._at:
                self._at, self._rest = max(0, size - TAIL), b""
                cut = self._at > 0
            else:
                cut = size - self._at > AT_ONCE
                self._at = size - AT_ONCE if cut else self._at
            file.seek(self._at)
            piece = file.read(size - self._at)
            self._at += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if cut and lines:
            del lines[0]  # its beginning is missing
        if len(self._rest) > LONGEST:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")

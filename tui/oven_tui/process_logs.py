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
        output = []
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.log")):
                tail = self._files.setdefault(path.stem, _Tail(path))
                with contextlib.suppress(OSError):
                    if lines := list(tail.read()):
                        output.append((path.stem, lines))
        return output


class _Tail:
    """One file. A file that became shorter is read from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if self._offset is None or size < self._offset:
                self._offset, self._rest = max(0, size - TAIL), b""
                cut = self._offset > 0
            else:
                cut = size - self._offset > AT_ONCE
                self._offset = size - AT_ONCE if cut else self._offset
            file.seek(self._offset)
            piece = file.read(size - self._offset)
            self._offset += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if cut and lines:
            del lines[0]  # its beginning is missing
        if len(self._rest) > LONGEST:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")

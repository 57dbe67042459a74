"""Read text files of any size line by line, in UTF-8, UTF-16 or Latin-1."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from oven_core.errors import ConfigError

MAX_LINE = 1 << 24
"""Maximum number of characters in a line. The rest of a longer line is read as another line."""
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_HEAD_BYTES = 1 << 16
_SHOW_PROGRESS_BYTES = 64 << 20
"""Progress is shown for files of at least this size."""
_PROGRESS_LINES = 1 << 16


def read_head(path: Path) -> str:
    """Return the beginning of a text file, about 64 KiB. Raises ConfigError if the file is binary."""
    with path.open("rb") as file:
        data = file.read(_HEAD_BYTES)
    encoding = _encoding(data)
    if encoding != "utf-16" and b"\0" in data:
        raise ConfigError(f"{path} is a binary file, and its format is not supported")
    return data.decode(encoding, errors="ignore" if encoding != "utf-8" else "replace")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, without line ends. Bytes that are not valid in UTF-8 are read as Latin-1. For
    large files, show the progress on a terminal."""
    with path.open("rb") as file:
        encoding = _encoding(file.read(4))
    size = path.stat().st_size
    shows_progress = size >= _SHOW_PROGRESS_BYTES and sys.stderr.isatty()
    with path.open("rb") as file, io.TextIOWrapper(file, encoding, "oven_latin_1", "\n") as lines:
        number = 0
        while line := lines.readline(MAX_LINE):
            yield line.rstrip("\r\n")
            number += 1
            if shows_progress and number % _PROGRESS_LINES == 0:
                print(f"\rreading {path.name}: {file.tell() / size:.0%}", end="", file=sys.stderr, flush=True)
    if shows_progress:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def read_text(path: Path) -> str:
    """Return the text of a file, decoded like `read_lines`."""
    data = path.read_bytes()
    return data.decode(_encoding(data), "oven_latin_1")


def _encoding(head: bytes) -> str:
    return next((encoding for bom, encoding in _BOMS.items() if head.startswith(bom)), "utf-8")


def _decode_as_latin_1(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("oven_latin_1", _decode_as_latin_1)

"""A graph file as input for a loader: decompressed, and within size limits."""

from __future__ import annotations

import bz2
import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

from oven_core.errors import ConfigError, reason

HEAD_BYTES: Final = 64 * 1024
"""Number of decompressed bytes at the start of a file from which its format is detected."""
MAX_BYTES: Final = 64 * 2**30
"""Maximum size of a decompressed file. ConceptNet 5.7 takes 10 GB."""
MAX_JSON_BYTES: Final = 64 * 2**20
"""Maximum size of a JSON file whose format has to be parsed as a whole."""
MAX_COMPRESSION_RATIO: Final = 100
"""Maximum ratio of decompressed to compressed size. ConceptNet has 20, GraphML 30, and a gzip bomb 1,000."""
ALWAYS_ALLOWED_BYTES: Final = 16 * 2**20
"""Decompressed bytes that are allowed at any ratio, because a short file of repeated lines compresses well."""
GZIP: Final = b"\x1f\x8b"
BZIP2: Final = b"BZh"


@dataclass(frozen=True)
class GraphFile:
    """A file from which a graph is read."""

    path: Path

    @cached_property
    def head(self) -> bytes:
        """Return the first decompressed bytes. Raises ConfigError."""
        with self.open() as file:
            return file.read(HEAD_BYTES)

    @cached_property
    def compression(self) -> bytes:
        """Return GZIP, BZIP2, or empty bytes for an uncompressed file."""
        with self._open_raw() as file:
            start = file.read(3)
        return next((magic for magic in (GZIP, BZIP2) if start.startswith(magic)), b"")

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open a decompressed stream. Reading raises ConfigError if the file is truncated or exceeds a limit."""
        with self._open_raw() as raw:
            yield io.BufferedReader(_LimitedReader(self.path, raw, self.compression), HEAD_BYTES)

    @contextmanager
    def _open_raw(self) -> Iterator[BinaryIO]:
        try:
            is_regular = stat.S_ISREG(self.path.stat().st_mode)  # opening a pipe could block forever
            file = self.path.open("rb") if is_regular else None
        except OSError as error:
            raise ConfigError(f"cannot read the graph {self.path}: {error.strerror}") from error
        except ValueError as error:  # a null byte in the name
            raise ConfigError(f"cannot read the graph {str(self.path)!r}: {error}") from error
        if file is None:
            raise ConfigError(f"cannot read the graph {self.path}: it is not a regular file; name the graph's file")
        with file:
            yield file


class _LimitedReader(io.RawIOBase):
    """A stream that counts a file's decompressed bytes and enforces the limits."""

    def __init__(self, path: Path, raw: BinaryIO, compression: bytes) -> None:
        self._path, self._raw, self._compression = path, raw, compression
        self._file: BinaryIO | gzip.GzipFile | bz2.BZ2File = raw
        if compression:
            self._file = gzip.GzipFile(fileobj=raw) if compression == GZIP else bz2.BZ2File(raw)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        try:
            chunk = self._file.read(len(view))
        except EOFError:
            raise ConfigError(f"{self._path} is truncated; download or compress it again") from None
        except (OSError, zlib.error) as error:
            problem = reason(error)
            if self._compression:
                problem = f"cannot be decompressed: {problem}; download or compress it again"
            raise ConfigError(f"{self._path} {problem}") from error
        view[: len(chunk)] = chunk
        self._count += len(chunk)
        if self._compression and self._count > max(ALWAYS_ALLOWED_BYTES, MAX_COMPRESSION_RATIO * self._raw.tell()):
            raise ConfigError(
                f"{self._path} decompresses to more than {MAX_COMPRESSION_RATIO} times its size, which suggests a "
                "decompression bomb; decompress it yourself if you trust it"
            )
        if self._count > MAX_BYTES:
            raise ConfigError(f"{self._path} has more than {MAX_BYTES:,} bytes; import only a part of it")
        return len(chunk)


def read_lines(graph_file: GraphFile, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield each non-blank line with its number from 1. Raises ConfigError for a line over `limit` bytes."""
    with graph_file.open() as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise ConfigError(
                    f"{graph_file.path}, line {number} has more than {limit:,} bytes; shorten or remove it"
                )
            if not line.isspace():
                yield number, line


def decode(graph_file: GraphFile, location: str, text: bytes) -> str:
    """Decode UTF-8. Raises ConfigError with the first invalid byte."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise utf8_error(graph_file, location, text[error.start]) from None


def utf8_error(graph_file: GraphFile, location: str, byte: int) -> ConfigError:
    """Return the error for a byte that is not UTF-8."""
    return ConfigError(
        f"{graph_file.path}, {location} is not UTF-8 (byte 0x{byte:02x}); convert the file, e.g. with `iconv -t UTF-8`"
    )

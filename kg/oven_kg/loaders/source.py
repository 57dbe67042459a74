"""A file as a loader reads it: unpacked, and within bounds."""

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

HEAD: Final = 64 * 1024
"""Bytes of the unpacked file by which its format is told."""
UNPACKED: Final = 64 * 2**30
"""Bytes of one file, unpacked: ConceptNet 5.7 has 10 GB."""
EXPANSION: Final = 100
"""Times its packed size that a file may have: ConceptNet has 20, GraphML 30, a bomb of gzip 1,000."""
UNSUSPECTED: Final = 16 * 2**20
"""Bytes that a file may have whatever its packed size is: few lines that repeat pack well."""
GZIP: Final = b"\x1f\x8b"
BZIP2: Final = b"BZh"


@dataclass(frozen=True)
class Input:
    """A file, or a folder, that a graph is read from."""

    path: Path

    @cached_property
    def head(self) -> bytes:
        """Its first bytes, unpacked; none of a folder. Raises ConfigError."""
        with self.open() as file:
            return file.read(HEAD)

    @cached_property
    def packed(self) -> bytes:
        """The magic bytes that say how it is packed; none if it is not."""
        with self._raw() as file:
            first = file.read(3)
        return next((magic for magic in (GZIP, BZIP2) if first.startswith(magic)), b"")

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The unpacked content. Raises ConfigError, while it is read, for what is cut short or beyond the bounds."""
        with self._raw() as raw:
            yield io.BufferedReader(_Bounded(self.path, raw, self.packed), HEAD)

    @contextmanager
    def _raw(self) -> Iterator[BinaryIO]:
        try:
            regular = stat.S_ISREG(self.path.stat().st_mode)  # opening a pipe may wait for ever
            file = self.path.open("rb") if regular else None
        except OSError as error:
            raise ConfigError(f"cannot read the graph {self.path}: {error.strerror}") from error
        except ValueError as error:  # a null byte in the name
            raise ConfigError(f"cannot read the graph {str(self.path)!r}: {error}") from error
        if file is None:
            raise ConfigError(f"cannot read the graph {self.path}: it is not a regular file; give the graph's file")
        with file:
            yield file


class _Bounded(io.RawIOBase):
    """The unpacked bytes of a file, counted."""

    def __init__(self, path: Path, raw: BinaryIO, packed: bytes) -> None:
        self._path, self._raw, self._packed = path, raw, packed
        self._file: BinaryIO | gzip.GzipFile | bz2.BZ2File = raw
        if packed:
            self._file = gzip.GzipFile(fileobj=raw) if packed == GZIP else bz2.BZ2File(raw)
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer)
        try:
            piece = self._file.read(len(into))
        except EOFError:
            raise ConfigError(f"{self._path} is cut short: its end is missing; fetch or pack it again") from None
        except (OSError, zlib.error) as error:
            what = f"cannot be unpacked: {reason(error)}; fetch or pack it again" if self._packed else reason(error)
            raise ConfigError(f"{self._path} {what}") from error
        into[: len(piece)] = piece
        self._given += len(piece)
        if self._packed and self._given > max(UNSUSPECTED, EXPANSION * self._raw.tell()):
            raise ConfigError(
                f"{self._path} unpacks to more than {EXPANSION} times its size, as a file does that is made to fill "
                "a memory; unpack it yourself if you trust it"
            )
        if self._given > UNPACKED:
            raise ConfigError(f"{self._path} has more than {UNPACKED:,} bytes; give a part of it")
        return len(piece)


def lines(held: Input, limit: int) -> Iterator[tuple[int, bytes]]:
    """Each line that is not blank, with its number from 1. Raises ConfigError for one of more than `limit` bytes."""
    with held.open() as file:
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            if len(line) > limit:
                raise ConfigError(f"{held.path}, line {number} has more than {limit:,} bytes; cut it, or leave it out")
            if not line.isspace():
                yield number, line


def utf8(held: Input, place: str, text: bytes) -> str:
    """Raises ConfigError that names the byte."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(held, place, text[error.start]) from None


def not_utf8(held: Input, place: str, byte: int) -> ConfigError:
    return ConfigError(
        f"{held.path}, {place} is not UTF-8 (byte 0x{byte:02x}); convert the file, e.g. with `iconv -t UTF-8`"
    )

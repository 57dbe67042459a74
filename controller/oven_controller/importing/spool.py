"""A list of values on disk, for sources that do not fit into memory."""

from __future__ import annotations

import marshal
import struct
import tempfile
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<I")
"""Format of the length in bytes that precedes each stored value."""


class Spool:
    """Values in a temporary file. They can be read any number of times, in the order in which they were added. Values
    consist of the basic types that `marshal` supports. Do not add values while reading."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def add(self, value: Any) -> None:
        data = marshal.dumps(value)
        self._file.write(_LENGTH.pack(len(data)) + data)

    def __iter__(self) -> Iterator[Any]:
        """Yield the values. Use only one iterator at a time."""
        self._file.seek(0)
        while head := self._file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            yield marshal.loads(self._file.read(length))

    def close(self) -> None:
        self._file.close()

"""Frames between host and child: one byte for the kind, four for the length, then so many bytes. JSON, never pickle.

What the child sends is written by code that is not trusted: lengths are checked before anything is kept, and values
before anything is believed. The child imports this module, too.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

HEADER: Final = struct.Struct("<BI")
FRAME_BYTES: Final = 64_000_000
"""Of a frame at most, either way: a context of 50 MB fits."""

SETUP, TEXT, VALUE, RUN, RETURNED, FAILED = range(1, 7)
"""To the child: walls and limits; a variable as text or as JSON; a block of code; a call's result, or its error."""
READY, OUT, ERR, CALL, FINAL, REFUSED, DONE = range(16, 23)
"""To the host: the walls are up; output; a call of a host's function; an answer, or why it is none; the end of it."""

NESTED: Final = 100
"""Levels of lists and objects in a value; a deeper one would end those who walk it."""


class FrameError(ValueError):
    """What came is not a frame, or not a value that JSON can hold."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Raises FrameError for one that is too long."""
    if len(payload) > FRAME_BYTES:
        raise FrameError(f"{len(payload) / 1e6:.1f} MB, where {FRAME_BYTES / 1e6:g} MB fit into a frame")
    return HEADER.pack(kind, len(payload)) + payload


class Frames:
    """Frames out of pieces of a stream. `longest`: bytes by kind; other kinds are errors."""

    def __init__(self, longest: Mapping[int, int]) -> None:
        self._longest, self._held = longest, bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Those that are whole now. Raises FrameError as soon as a header cannot be true."""
        self._held += piece
        at = 0
        try:
            while len(self._held) - at >= HEADER.size:
                kind, length = HEADER.unpack_from(self._held, at)
                if kind not in self._longest:
                    raise FrameError(f"a frame of kind {kind}, which a child does not send")
                if length > self._longest[kind]:
                    raise FrameError(f"a frame of {length} bytes, where {self._longest[kind]} are the most")
                end = at + HEADER.size + length
                if end > len(self._held):
                    return
                found = bytes(memoryview(self._held)[at + HEADER.size : end])
                at = end
                yield kind, found
        finally:
            del self._held[:at]


def encode(value: object) -> bytes:
    """JSON. Raises FrameError, which names what JSON cannot hold."""
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise FrameError("half of a surrogate pair, which is not text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError("it is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None
    return data


def decode(data: bytes) -> Any:
    """The value of JSON from the child, checked. Raises FrameError."""
    try:
        value = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from None
    _check(value)
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _check(value: object) -> None:
    """Raises FrameError for a number without end, half of a surrogate pair, and deep nesting."""
    level: list[object] = [value]
    for _ in range(NESTED):
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += one
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, str):
                _check_text(one)
            elif isinstance(one, float) and not math.isfinite(one):
                raise FrameError("a number that is too large for a float")
        if not inner:
            return
        level = inner
    raise FrameError(f"nested more than {NESTED} levels deep")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FrameError("half of a surrogate pair, which is not text") from None

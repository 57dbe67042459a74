"""Framing between host and child: a kind byte, a 4-byte length and a payload. Values are JSON, never pickle.

Untrusted code writes the child's frames. The host checks each length before it stores the payload, and each value
before it uses it. The child imports this module too.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

HEADER: Final = struct.Struct("<BI")
FRAME_BYTES: Final = 64_000_000
"""Maximum size of a frame in either direction. A context of 50 MB fits."""

SETUP, TEXT, VALUE, RUN, RETURNED, FAILED = range(1, 7)
"""Kinds of frames to the child: confinement and limits; a variable as text or JSON; a block; a call's result or its
error."""
READY, OUT, ERR, CALL, FINAL, REFUSED, DONE = range(16, 23)
"""Kinds of frames to the host: confined and ready; output; a call of a host function; an answer, or why it is refused;
end of block."""

MAX_DEPTH: Final = 100
"""Maximum nesting of lists and objects in a value. Deeper values would crash code that walks them recursively."""


class FrameError(ValueError):
    """The data is not a valid frame or not a valid JSON value."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return a frame's bytes. Raises FrameError for a payload that is too long."""
    if len(payload) > FRAME_BYTES:
        raise FrameError(f"{len(payload) / 1e6:.1f} MB, where {FRAME_BYTES / 1e6:g} MB fit into a frame")
    return HEADER.pack(kind, len(payload)) + payload


class Frames:
    """Assembles frames from chunks of a stream."""

    def __init__(self, limits: Mapping[int, int]) -> None:
        """`limits` maps each permitted kind to its maximum payload in bytes."""
        self._limits, self._buffer = limits, bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and payload of each complete frame. Raises FrameError as soon as a header is invalid."""
        self._buffer += piece
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                kind, length = HEADER.unpack_from(self._buffer, start)
                if kind not in self._limits:
                    raise FrameError(f"a frame of kind {kind}, which a child does not send")
                if length > self._limits[kind]:
                    raise FrameError(f"a frame of {length} bytes, where {self._limits[kind]} are the maximum")
                end = start + HEADER.size + length
                if end > len(self._buffer):
                    return
                payload = bytes(memoryview(self._buffer)[start + HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            del self._buffer[:start]


def encode(value: object) -> bytes:
    """Return the value as JSON. Raises FrameError that names what JSON cannot represent."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise FrameError("half of a surrogate pair, which is not text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError("it is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def decode(data: bytes) -> Any:
    """Parse and check JSON from the child. Raises FrameError."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"not JSON: {error}") from None
    _check(value)
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"JSON has no number {name}")


def _check(value: object) -> None:
    """Raise FrameError for an infinite number, half of a surrogate pair, or deep nesting."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str):
                _check_text(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise FrameError("a number that is too large for a float")
        if not inner:
            return
        level = inner
    raise FrameError(f"nested more than {MAX_DEPTH} levels deep")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FrameError("half of a surrogate pair, which is not text") from None

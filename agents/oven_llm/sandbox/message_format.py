"""The binary format of messages between the host and the sandbox's child process.

A frame has a byte for its kind, a 4-byte length and a payload. Values are JSON, never pickle. Untrusted code writes the
child's frames, so the host checks all lengths and values. The child also imports this module."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

HEADER: Final = struct.Struct("<BI")
MAX_FRAME_BYTES: Final = 64_000_000
"""Maximum bytes of a frame. A context of 50 MB fits."""

SETUP, TEXT, VALUE, RUN, RETURNED, FAILED = range(1, 7)
"""Kinds of frames to the child: the setup, a variable (as a string or JSON), a block, and a call's result or error."""
READY, OUT, ERR, CALL, FINAL, REFUSED, DONE = range(16, 23)
"""Kinds of frames to the host: ready (or not secure), standard output and error, a call of a host function, an answer,
the reason for a refused answer, and the outcome of a block."""

MAX_DEPTH: Final = 100
"""Maximum nesting of lists and objects in a value. Deeper values would crash recursive code."""


class FrameError(ValueError):
    """The data is not a valid frame or JSON value."""


def pack_frame(kind: int, payload: bytes = b"") -> bytes:
    """Return a frame's bytes. Raises FrameError if the payload is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"it has {len(payload) / 1e6:.1f} MB; the limit is {MAX_FRAME_BYTES / 1e6:g} MB")
    return HEADER.pack(kind, len(payload)) + payload


class FrameReader:
    """Assembles frames from chunks of a stream."""

    def __init__(self, limits: Mapping[int, int]) -> None:
        """`limits` contains the permitted kinds of frames, each with the maximum bytes of its payload."""
        self._limits, self._buffer = limits, bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the kind and payload of each complete frame. Raises FrameError as soon as a header is invalid."""
        self._buffer += chunk
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                kind, length = HEADER.unpack_from(self._buffer, start)
                if kind not in self._limits:
                    raise FrameError(f"unexpected kind {kind}")
                if length > self._limits[kind]:
                    raise FrameError(f"it has {length} bytes; the limit is {self._limits[kind]}")
                end = start + HEADER.size + length
                if end > len(self._buffer):
                    return
                payload = bytes(memoryview(self._buffer)[start + HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            del self._buffer[:start]


def encode(value: object) -> bytes:
    """Return the value as JSON. Raises FrameError if JSON cannot represent it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise FrameError("a string contains an unpaired surrogate") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError("it is nested too deeply" if isinstance(error, RecursionError) else str(error)) from None


def decode(data: bytes) -> Any:
    """Parse JSON from the child. Raises FrameError if it is not valid."""
    try:
        value = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"it is not valid JSON: {error}") from None
    _check_value(value)
    return value


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _check_value(value: object) -> None:
    """Raise FrameError for an infinite number, an unpaired surrogate or deep nesting."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        next_level: list[object] = []
        for item in level:
            if isinstance(item, dict):
                next_level += item.keys()
                next_level += item.values()
            elif isinstance(item, list):
                next_level += item
            elif isinstance(item, str):
                _check_string(item)
            elif isinstance(item, float) and not math.isfinite(item):
                raise FrameError("a number is too large for a float")
        if not next_level:
            return
        level = next_level
    raise FrameError(f"it is nested more than {MAX_DEPTH} levels deep")


def _check_string(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FrameError("a string contains an unpaired surrogate") from None

"""The sandboxed child's connection to the host, and the functions that use it: the host's functions and FINAL."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from oven_llm.sandbox import message_format
from oven_llm.sandbox.message_format import HEADER, MAX_FRAME_BYTES, FrameError, pack_frame

CHUNK_BYTES, LARGE_CHUNK_BYTES = 1 << 16, 1 << 20
"""Bytes per read. Buffers above 128 KiB cost a system call each, which pays off only for large frames."""


class HostLink:
    """Exchanges frames with the host. Exits the process if the host is gone or sends an invalid header."""

    def __init__(self, requests: int, replies: int) -> None:
        """`requests` and `replies` are file descriptors."""
        self._requests, self._replies = requests, replies
        self._buffer = bytearray()
        self._exit = os._exit  # code in the sandbox may replace `os._exit`

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame, without buffering. Raises FrameError if it is too long."""
        remaining = memoryview(pack_frame(kind, payload))
        while remaining:
            written_bytes = os.write(self._replies, remaining)
            remaining = remaining[written_bytes:]

    def receive(self) -> tuple[int, bytes]:
        """Return the kind and payload of the next frame."""
        buffer = self._buffer
        while len(buffer) < HEADER.size:
            buffer += self._read(CHUNK_BYTES)
        kind, length = HEADER.unpack_from(buffer)
        if length > MAX_FRAME_BYTES:
            self._exit(3)
        end = HEADER.size + length
        while len(buffer) < end:
            buffer += self._read(max(CHUNK_BYTES, min(end - len(buffer), LARGE_CHUNK_BYTES)))
        payload = bytes(memoryview(buffer)[HEADER.size : end])
        del buffer[:end]
        return kind, payload

    def _read(self, size: int) -> bytes:
        chunk = os.read(self._requests, size)
        if not chunk:
            self._exit(0)
        return chunk


class HostError(RuntimeError):
    """A host function failed. The message comes from the host."""


class AnsweredExit(BaseException):
    """Ends a block after FINAL. The answer has already been sent, so it does not matter if code catches this."""


def make_host_function(link: HostLink, name: str, max_bytes: int) -> Callable[..., Any]:
    """Return a function that calls the host function `name`. It raises TypeError for arguments that JSON cannot
    represent, ValueError if the JSON exceeds `max_bytes`, and HostError if the host function fails."""

    def call(*args: object, **kwargs: object) -> Any:
        try:
            data = message_format.encode({"name": name, "args": args, "kwargs": kwargs})
        except FrameError as error:
            raise TypeError(f"{name}() requires JSON values: {error}") from None
        if len(data) > max_bytes:
            raise ValueError(f"{name}() got {len(data)} bytes of arguments; the limit is {max_bytes}: shorten them")
        link.send(message_format.CALL, data)
        kind, reply = link.receive()
        if kind == message_format.FAILED:
            raise HostError(reply.decode())
        return json.loads(reply)

    call.__name__ = call.__qualname__ = name
    return call


def make_final_function(link: HostLink, max_bytes: int) -> Callable[[object], NoReturn]:
    """Return FINAL, which sends the answer and raises AnsweredExit. It raises TypeError for an answer that JSON cannot
    represent, and ValueError if the JSON exceeds `max_bytes`. It reports both to the host as refused answers."""

    def FINAL(answer: object) -> NoReturn:
        """Return the answer to the host and end the block."""
        try:
            data = message_format.encode(answer)
        except FrameError as error:
            link.send(message_format.REFUSED, str(error)[:300].encode(errors="backslashreplace"))
            raise TypeError(f"FINAL requires a JSON value: {error}") from None
        if len(data) > max_bytes:
            link.send(message_format.REFUSED, f"it has {len(data)} bytes; the limit is {max_bytes}".encode())
            raise ValueError(
                f"FINAL accepts at most {max_bytes} bytes of JSON; this answer has {len(data)}: shorten it"
            )
        link.send(message_format.FINAL, data)
        raise AnsweredExit

    return FINAL


def redirect_standard_streams() -> None:
    """Redirect descriptors 0 to 2 to /dev/null, which discards any output that bypasses `sys.stdout`."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)

"""The sandboxed child's connection to the host: exchanges frames, calls host functions and sends the answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from oven_llm.sandbox import frames
from oven_llm.sandbox.frames import FRAME_BYTES, HEADER, FrameError, frame

PIECE, LARGE = 1 << 16, 1 << 20
"""Bytes per read. Buffers above 128 KiB cost a system call each, which only pays off for large frames."""


class HostLink:
    """Exchanges frames with the host. Exits the process if the host is gone or sends an invalid header."""

    def __init__(self, requests: int, replies: int) -> None:
        """`requests` and `replies` are file descriptors."""
        self._requests, self._replies = requests, replies
        self._buffer = bytearray()
        self._exit = os._exit  # code in the sandbox may replace the one in `os`

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a frame, without buffering. Raises FrameError if it is too long."""
        data = memoryview(frame(kind, payload))
        while data:
            data = data[os.write(self._replies, data) :]

    def receive(self) -> tuple[int, bytes]:
        """Return the kind and payload of the next frame."""
        buffer = self._buffer
        while len(buffer) < HEADER.size:
            buffer += self._read(PIECE)
        kind, length = HEADER.unpack_from(buffer)
        if length > FRAME_BYTES:
            self._exit(3)
        end = HEADER.size + length
        while len(buffer) < end:
            buffer += self._read(max(PIECE, min(end - len(buffer), LARGE)))
        payload = bytes(memoryview(buffer)[HEADER.size : end])
        del buffer[:end]
        return kind, payload

    def _read(self, size: int) -> bytes:
        piece = os.read(self._requests, size)
        if not piece:
            self._exit(0)
        return piece


class HostError(RuntimeError):
    """A host function failed. The message comes from the host."""


class Answered(BaseException):
    """Ends a block after FINAL. The host receives the answer before this is raised, so no `except` can lose it."""


def host_function(link: HostLink, name: str, longest: int) -> Callable[..., Any]:
    """Return a function that calls the host function `name`. It raises TypeError for arguments that JSON cannot
    represent, ValueError above `longest` bytes of JSON, and HostError if the host function fails."""

    def call(*args: object, **kwargs: object) -> Any:
        try:
            data = frames.encode({"name": name, "args": args, "kwargs": kwargs})
        except FrameError as error:
            raise TypeError(f"{name}() takes values that JSON can hold: {error}") from None
        if len(data) > longest:
            raise ValueError(f"{name}() got {len(data)} bytes of arguments; {longest} are the maximum: shorten them")
        link.send(frames.CALL, data)
        kind, reply = link.receive()
        if kind == frames.FAILED:
            raise HostError(reply.decode())
        return json.loads(reply)

    call.__name__ = call.__qualname__ = name
    return call


def final_function(link: HostLink, longest: int) -> Callable[[object], NoReturn]:
    """Return FINAL, which sends the answer and raises Answered. It raises TypeError for an answer that JSON cannot
    represent, and ValueError above `longest` bytes. The host counts both."""

    def FINAL(answer: object) -> NoReturn:
        """Give the answer, and end."""
        try:
            data = frames.encode(answer)
        except FrameError as error:
            link.send(frames.REFUSED, str(error)[:300].encode(errors="backslashreplace"))
            raise TypeError(f"FINAL takes what JSON can hold: {error}") from None
        if len(data) > longest:
            link.send(frames.REFUSED, f"{len(data)} bytes, where {longest} are the maximum".encode())
            raise ValueError(f"FINAL takes {longest} bytes of JSON; this answer has {len(data)}: shorten it")
        link.send(frames.FINAL, data)
        raise Answered

    return FINAL


def redirect_standard_streams() -> None:
    """Redirect descriptors 0 to 2 to /dev/null, which discards any output that bypasses `sys.stdout`."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)

"""The child's end of the pipes to the host: whole frames, read and written without buffering."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from oven_llm.sandbox import frames
from oven_llm.sandbox.frames import FRAME_BYTES, HEADER, FrameError, frame


class HostError(RuntimeError):
    """A function of the host failed; the message is the host's."""


class Answered(BaseException):
    """Ends a block after FINAL. The answer is at the host before this is raised, so no `except` loses it."""


def host_function(channel: Channel, name: str, longest: int) -> Callable[..., Any]:
    """One that stands for the host's function `name`: arguments and result are values of JSON. `longest`: bytes of the
    arguments. It raises TypeError and ValueError for others, and HostError where the host's failed."""

    def call(*args: object, **kwargs: object) -> Any:
        try:
            data = frames.encode({"name": name, "args": args, "kwargs": kwargs})
        except FrameError as error:
            raise TypeError(f"{name}() takes values that JSON can hold: {error}") from None
        if len(data) > longest:
            raise ValueError(f"{name}() got {len(data)} bytes of arguments; {longest} are the most: cut them")
        channel.send(frames.CALL, data)
        kind, reply = channel.receive()
        if kind == frames.FAILED:
            raise HostError(reply.decode())
        return json.loads(reply)

    call.__name__ = call.__qualname__ = name
    return call


def final_function(channel: Channel, longest: int) -> Callable[[object], NoReturn]:
    """FINAL: sends the answer, then raises Answered. It raises TypeError, which the host counts, for an answer that
    JSON cannot hold, and ValueError for one above `longest` bytes."""

    def FINAL(answer: object) -> NoReturn:
        """Give the answer, and end."""
        try:
            data = frames.encode(answer)
        except FrameError as error:
            channel.send(frames.REFUSED, str(error)[:300].encode(errors="backslashreplace"))
            raise TypeError(f"FINAL takes what JSON can hold: {error}") from None
        if len(data) > longest:
            channel.send(frames.REFUSED, f"{len(data)} bytes, where {longest} are the most".encode())
            raise ValueError(f"FINAL takes {longest} bytes of JSON; this answer has {len(data)}: shorten it")
        channel.send(frames.FINAL, data)
        raise Answered

    return FINAL


PIECE, LARGE = 1 << 16, 1 << 20
"""Bytes that are read at a time: above 128 KiB the allocator asks the kernel each time, which pays for large frames."""


class Channel:
    """Ends this process where the host is gone, or sent what is not a frame."""

    def __init__(self, requests: int, replies: int) -> None:
        self._requests, self._replies = requests, replies
        self._held = bytearray()
        self._exit = os._exit  # code in the sandbox may put another into `os`

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Raises FrameError for a frame that is too long."""
        data = memoryview(frame(kind, payload))
        while data:
            data = data[os.write(self._replies, data) :]

    def receive(self) -> tuple[int, bytes]:
        held = self._held
        while len(held) < HEADER.size:
            held += self._piece(PIECE)
        kind, length = HEADER.unpack_from(held)
        if length > FRAME_BYTES:
            self._exit(3)
        end = HEADER.size + length
        while len(held) < end:
            held += self._piece(max(PIECE, min(end - len(held), LARGE)))
        payload = bytes(memoryview(held)[HEADER.size : end])
        del held[:end]
        return kind, payload

    def _piece(self, size: int) -> bytes:
        piece = os.read(self._requests, size)
        if not piece:
            self._exit(0)
        return piece


def redirect_standard_streams() -> None:
    """Descriptors 0 to 2 are /dev/null from now on: what goes around `sys.stdout` reaches no one."""
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)

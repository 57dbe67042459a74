"""What code in the sandbox calls: functions of the host, by message, and FINAL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from oven_llm.sandbox import frames
from oven_llm.sandbox.frames import FrameError
from oven_llm.sandbox.inside.channel import Channel


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

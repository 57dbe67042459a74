"""One request to the child and all that it says until it is done: calls answered, output kept, nothing believed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from oven_llm.sandbox import frames
from oven_llm.sandbox.frames import FrameError, frame
from oven_llm.sandbox.limits import Limits

Ended = Literal["completed", "error", "timeout", "died", "protocol", "limit"]
"""`completed`: it came to its end, or to FINAL. `error`: an exception that it did not catch. The others cost the
process: `timeout`, its wall time; `died`, by itself; `protocol`, it sent what is not a frame; `limit`, it called or
sent too much."""


@dataclass(frozen=True)
class Answer:
    """What FINAL was given, of any JSON value: 0, "" and None are answers, too."""

    value: Any


@dataclass(frozen=True)
class Block:
    """`error` is one line and says why `ended` is not `completed`; a traceback stands at the end of `stderr`."""

    ended: Ended
    stdout: str
    stderr: str
    error: str
    answer: Answer | None
    """The first answer, also of a block that did not come to its end."""
    refused: tuple[str, ...]
    """Why each answer was none: FINAL of what JSON cannot hold, or of too much."""
    calls: int
    """Calls of the host's functions."""
    own_s: float
    """Wall time in the child: what the deadline counts."""
    host_s: float
    """Wall time in the host's functions."""
    dropped: int
    """Characters that were printed above the limit."""
    namespace_lost: bool
    """The process is gone, and what it had defined; the next block gets another, with the same variables assigned."""


Functions = Mapping[str, Callable[..., Any]]
"""By the name that the code calls. Arguments and results are values of JSON."""


class DeadlineError(Exception):
    """The child did not answer, or did not read, in time."""


class GoneError(Exception):
    """The child ended by itself; the message says how."""


class Peer(Protocol):
    """The other end: the child, or what stands for one in a test."""

    def send(self, data: bytes, deadline: float) -> None:
        """Raises DeadlineError and GoneError."""

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """The next frame: kind and payload. Raises DeadlineError, GoneError and FrameError."""


class CallError(Exception):
    """What a host's function raises to fail in the code that called it, with this message. Of any other error the code
    is told the kind alone: its text may hold a key or a path."""


class Conversation:
    """One request and all that the child says until it is done."""

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._output: dict[int, list[bytes]] = {frames.OUT: [], frames.ERR: []}
        self._answer: Answer | None = None
        self._refused: list[str] = []
        self._calls = self._received = self._printed = self._dropped = 0
        self._host_s = 0.0

    def hold(self, child: Peer, request: bytes) -> Block:
        """Never raises for anything that the child does."""
        began = time.monotonic()
        deadline = began + self._limits.block_s
        ended: Ended
        try:
            child.send(request, deadline)
            ended, error = self._listen(child, deadline)
        except DeadlineError:
            ended, error = "timeout", f"it took more than {self._limits.block_s:g} s, and was ended"
        except GoneError as gone:
            ended, error = "died", str(gone)
        except FrameError as fault:
            ended, error = "protocol", f"it was ended: it sent {fault}"
        except _TooMuchError as much:
            ended, error = "limit", f"it was ended: {much}"
        took = time.monotonic() - began
        out, err = (b"".join(self._output[kind]).decode(errors="replace") for kind in (frames.OUT, frames.ERR))
        return Block(
            ended, out, err, error, self._answer, tuple(self._refused), self._calls, took - self._host_s,
            self._host_s, self._dropped, ended not in ("completed", "error"),
        )  # fmt: skip

    def _listen(self, child: Peer, deadline: float) -> tuple[Ended, str]:
        limits = self._limits
        while True:
            kind, payload = child.receive(deadline)
            self._received += frames.HEADER.size + len(payload)
            if self._received > limits.received_bytes:
                raise _TooMuchError(f"it sent more than {limits.received_bytes} bytes")
            if kind in self._output:
                self._keep(kind, payload)
            elif kind == frames.CALL:
                self._calls += 1
                if self._calls > limits.calls:
                    raise _TooMuchError(f"it called the host more than {limits.calls} times")
                began = time.monotonic()
                reply = self._reply(payload)
                took = time.monotonic() - began
                self._host_s += took
                deadline += took
                child.send(reply, deadline)
            elif kind == frames.FINAL:
                value = frames.decode(payload)
                if self._answer is None:
                    self._answer = Answer(value)
            elif kind == frames.REFUSED:
                self._refused.append(payload.decode(errors="replace"))  # their bytes are counted as received
            elif kind == frames.DONE:
                return self._done(payload)
            else:
                raise FrameError("a frame out of turn")

    def _keep(self, kind: int, payload: bytes) -> None:
        """The child cuts by itself; here it is held to it."""
        kept = payload[: max(0, self._limits.output_bytes - self._printed)]
        self._printed += len(kept)
        self._dropped += len(payload) - len(kept)
        if kept:
            self._output[kind].append(kept)

    def _done(self, payload: bytes) -> tuple[Ended, str]:
        match frames.decode(payload):
            case {"ended": "completed", "dropped": int(dropped)}:
                self._dropped += dropped
                return "completed", ""
            case {"ended": "error", "error": str(error), "dropped": int(dropped)}:
                self._dropped += dropped
                return "error", error
        raise FrameError("a report that is none")

    def _reply(self, payload: bytes) -> bytes:
        match frames.decode(payload):
            case {"name": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                pass
            case _:
                raise FrameError("a call that is none")
        function = self._functions.get(name)
        if function is None:
            return _failed(f"there is no function {name[:100]!r}")
        return called(name, function, args, kwargs)


def called(name: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bytes:
    """The frame with what a function of the host's returned, or with how it failed."""
    try:
        return frame(frames.RETURNED, frames.encode(function(*args, **kwargs)))
    except CallError as error:
        return _failed(str(error))
    except FrameError as error:
        return _failed(f"what {name}() returned cannot be passed on: {error}")
    except Exception as error:
        return _failed(f"{name}() failed: {type(error).__name__}")


def _failed(why: str) -> bytes:
    return frame(frames.FAILED, why[:2000].encode(errors="backslashreplace"))


class _TooMuchError(Exception):
    pass

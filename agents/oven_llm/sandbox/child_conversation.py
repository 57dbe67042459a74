"""Sends a request to the sandbox's child process and handles the child's frames, which are not trusted."""

from __future__ import annotations

import time
from typing import Protocol

from oven_core.errors import ConfigError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError, frame
from oven_llm.sandbox.sandbox import Block, BlockEnding, CallError, FinalAnswer, Functions


class DeadlineError(Exception):
    """The child did not reply or read in time."""


class ChildExitedError(Exception):
    """The child exited unexpectedly. The message contains the exit code or signal."""


class Peer(Protocol):
    """The other end of the connection: the child, or a fake in tests."""

    def send(self, data: bytes, deadline: float) -> None:
        """Send bytes. Raises DeadlineError and ChildExitedError."""

    def receive(self, deadline: float) -> tuple[int, bytes]:
        """Return the kind and payload of the next frame. Raises DeadlineError, ChildExitedError and FrameError."""


class Exchange:
    """Handles one request and the child's frames until the request is done."""

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._output: dict[int, list[bytes]] = {message_format.OUT: [], message_format.ERR: []}
        self._answer: FinalAnswer | None = None
        self._refused: list[str] = []
        self._calls = self._received = self._printed = self._dropped = 0
        self._host_s = 0.0

    def run(self, child: Peer, request: bytes) -> Block:
        """Send the request and return the outcome. The child cannot make it raise."""
        started = time.monotonic()
        deadline = started + self._limits.block_s
        ending: BlockEnding
        try:
            child.send(request, deadline)
            ending, error = self._listen(child, deadline)
        except DeadlineError:
            ending, error = "timeout", f"the block was stopped after {self._limits.block_s:g} s"
        except ChildExitedError as exit_error:
            ending, error = "died", str(exit_error)
        except FrameError as frame_error:
            ending, error = "protocol", f"the block was stopped because it sent an invalid frame: {frame_error}"
        except _LimitError as limit_error:
            ending, error = "limit", f"the block was stopped because {limit_error}"
        elapsed = time.monotonic() - started
        kinds = (message_format.OUT, message_format.ERR)
        out, err = (b"".join(self._output[kind]).decode(errors="replace") for kind in kinds)
        return Block(
            ending, out, err, error, self._answer, tuple(self._refused), self._calls, elapsed - self._host_s,
            self._host_s, self._dropped, ending not in ("completed", "error"),
        )  # fmt: skip

    def _listen(self, child: Peer, deadline: float) -> tuple[BlockEnding, str]:
        limits = self._limits
        while True:
            kind, payload = child.receive(deadline)
            self._received += message_format.HEADER.size + len(payload)
            if self._received > limits.received_bytes:
                raise _LimitError(f"it sent more than {limits.received_bytes} bytes")
            if kind in self._output:
                self._add_output(kind, payload)
            elif kind == message_format.CALL:
                self._calls += 1
                if self._calls > limits.calls:
                    raise _LimitError(f"it called functions more than {limits.calls} times")
                started = time.monotonic()
                reply = self._call_function(payload)
                elapsed = time.monotonic() - started
                self._host_s += elapsed
                deadline += elapsed
                child.send(reply, deadline)
            elif kind == message_format.FINAL:
                value = message_format.decode(payload)
                if self._answer is None:
                    self._answer = FinalAnswer(value)
            elif kind == message_format.REFUSED:
                self._refused.append(payload.decode(errors="replace"))  # counted in _received
            elif kind == message_format.DONE:
                return self._read_outcome(payload)
            else:
                raise FrameError(f"unexpected frame of kind {kind}")

    def _add_output(self, kind: int, payload: bytes) -> None:
        """Append output up to the limit. The child also truncates its output, but it is not trusted."""
        output = payload[: max(0, self._limits.output_bytes - self._printed)]
        self._printed += len(output)
        self._dropped += len(payload) - len(output)
        if output:
            self._output[kind].append(output)

    def _read_outcome(self, payload: bytes) -> tuple[BlockEnding, str]:
        match message_format.decode(payload):
            case {"ended": "completed", "dropped": int(dropped)}:
                self._dropped += dropped
                return "completed", ""
            case {"ended": "error", "error": str(error), "dropped": int(dropped)}:
                self._dropped += dropped
                return "error", error
        raise FrameError("malformed outcome")

    def _call_function(self, payload: bytes) -> bytes:
        match message_format.decode(payload):
            case {"name": str(name), "args": list(args), "kwargs": dict(kwargs)}:
                pass
            case _:
                raise FrameError("malformed call")
        function = self._functions.get(name)
        if function is None:
            return _failure_frame(f"there is no function {name[:100]!r}")
        try:
            return frame(message_format.RETURNED, message_format.encode(function(*args, **kwargs)))
        except CallError as error:
            return _failure_frame(str(error))
        except FrameError as error:
            return _failure_frame(f"the result of {name}() is not a JSON value: {error}")
        except Exception as error:
            return _failure_frame(f"{name}() failed: {type(error).__name__}")


def assignment_frame(name: str, value: object) -> bytes:
    """Return the frame that assigns a variable. Raises ConfigError for an invalid name or value."""
    if not name.isidentifier():
        raise ConfigError(f"{name!r} is not a valid variable name for the sandbox; choose another")
    kind, data = message_format.TEXT, b""
    try:
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
        else:
            kind, data = message_format.VALUE, message_format.encode(value)
    except FrameError as error:
        raise ConfigError(f"cannot pass {name} to the sandbox: {error}; use a string or a JSON value") from None
    try:
        return frame(kind, name.encode() + b"\0" + data)
    except FrameError as error:
        raise ConfigError(f"cannot pass {name} to the sandbox: {error}; shorten it") from None


def _failure_frame(reason: str) -> bytes:
    return frame(message_format.FAILED, reason[:2000].encode(errors="backslashreplace"))


class _LimitError(Exception):
    """The block exceeded a limit. The message completes the sentence "the block was stopped because …"."""

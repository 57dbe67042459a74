"""Sends a request to the sandbox's child process and handles the frames that it sends back, which are not trusted."""

from __future__ import annotations

import time
from typing import Protocol

from oven_core.errors import ConfigError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError, pack_frame
from oven_llm.sandbox.sandbox import Block, BlockEnding, CallError, FinalAnswer, Functions


class DeadlineError(Exception):
    """The child did not read a request or send a reply in time."""


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
        self._refusal_reasons: list[str] = []
        self._call_count = self._received_bytes = self._printed_bytes = self._dropped_count = 0
        self._host_s = 0.0

    def run(self, child: Peer, request: bytes) -> Block:
        """Send the request and return the outcome. The child cannot cause an exception."""
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
        stdout = b"".join(self._output[message_format.OUT]).decode(errors="replace")
        stderr = b"".join(self._output[message_format.ERR]).decode(errors="replace")
        return Block(
            ending, stdout, stderr, error, self._answer, tuple(self._refusal_reasons),
            call_count=self._call_count, child_s=elapsed - self._host_s, host_s=self._host_s,
            dropped_count=self._dropped_count, namespace_lost=ending not in ("completed", "error"),
        )  # fmt: skip

    def _listen(self, child: Peer, deadline: float) -> tuple[BlockEnding, str]:
        """Handle frames until the child reports that it is done. Time in host functions is added to the deadline."""
        limits = self._limits
        while True:
            kind, payload = child.receive(deadline)
            self._received_bytes += message_format.HEADER.size + len(payload)
            if self._received_bytes > limits.received_bytes:
                raise _LimitError(f"it sent more than {limits.received_bytes} bytes")
            if kind in self._output:
                self._add_output(kind, payload)
            elif kind == message_format.CALL:
                self._call_count += 1
                if self._call_count > limits.calls:
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
                self._refusal_reasons.append(payload.decode(errors="replace"))  # `received_bytes` limits these
            elif kind == message_format.DONE:
                return self._read_outcome(payload)
            else:
                raise FrameError(f"unexpected frame of kind {kind}")

    def _add_output(self, kind: int, payload: bytes) -> None:
        """Append output up to the limit. The child also truncates its output, but it is not trusted."""
        output = payload[: max(0, self._limits.output_bytes - self._printed_bytes)]
        self._printed_bytes += len(output)
        self._dropped_count += len(payload) - len(output)
        if output:
            self._output[kind].append(output)

    def _read_outcome(self, payload: bytes) -> tuple[BlockEnding, str]:
        """Return how the block ended, and its error line."""
        match message_format.decode(payload):
            case {"ended": "completed", "dropped": int(dropped)}:
                self._dropped_count += dropped
                return "completed", ""
            case {"ended": "error", "error": str(error), "dropped": int(dropped)}:
                self._dropped_count += dropped
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
            return _pack_failure(f"there is no function {name[:100]!r}")
        try:
            return pack_frame(message_format.RETURNED, message_format.encode(function(*args, **kwargs)))
        except CallError as error:
            return _pack_failure(str(error))
        except FrameError as error:
            return _pack_failure(f"the result of {name}() is not a JSON value: {error}")
        except Exception as error:
            return _pack_failure(f"{name}() failed: {type(error).__name__}")


def pack_assignment(name: str, value: object) -> bytes:
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
        return pack_frame(kind, name.encode() + b"\0" + data)
    except FrameError as error:
        raise ConfigError(f"cannot pass {name} to the sandbox: {error}; shorten it") from None


def _pack_failure(reason: str) -> bytes:
    return pack_frame(message_format.FAILED, reason[:2000].encode(errors="backslashreplace"))


class _LimitError(Exception):
    """The block exceeded a limit. The message completes the sentence "the block was stopped because …"."""

"""The sandbox as its users hold it: blocks of code in, what became of them out, whatever the code does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from oven_controller.errors import ConfigError, ProcessError
from oven_controller.sandbox import frames
from oven_controller.sandbox.block import Answer, Block, Ended
from oven_controller.sandbox.frames import FrameError, frame
from oven_controller.sandbox.limits import Limits
from oven_controller.sandbox.locked_child import DeadlineError, GoneError, LockedChild
from oven_controller.sandbox.probe import Backend, choose, probe
from oven_controller.sandbox.profiles import REPL, Profile
from oven_controller.sandbox.syscalls import Machine

Functions = Mapping[str, Callable[..., Any]]
"""By the name that the code calls. Arguments and results are values of JSON."""


class CallError(Exception):
    """What a host's function raises to fail in the code that called it, with this message. Of any other error the code
    is told the kind alone: its text may hold a key or a path."""


class Sandbox(Protocol):
    """One namespace, kept from block to block, and lost with its process. For one thread at a time."""

    backend: Backend

    def assign(self, name: str, value: object) -> None:
        """A variable, such as `context`: text, or what JSON can hold. Raises ConfigError for anything else, or if it is
        too large."""

    def run(self, code: str) -> Block:
        """Raises ProcessError only where no process can be started; all that code does is in the block."""

    def close(self) -> None:
        """Ends the process, and what runs in it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        ...


def open_sandbox(
    profile: Profile = REPL,
    functions: Functions | None = None,
    limits: Limits | None = None,
    backend: str | None = None,
) -> Sandbox:
    """The strongest backend that this machine has, or the one that is named, with its process started. Raises
    ConfigError where there is none, and ProcessError where its walls do not stand."""
    walls = probe()
    chosen = choose(walls, backend, profile.name)
    functions, limits = dict(functions or {}), limits or Limits()
    if unfit := [name for name in functions if not name.isidentifier() or name == "FINAL"]:
        raise ConfigError(f"{unfit[0]!r} cannot be the name of a function in the sandbox; take another")
    if chosen == "monty":
        from oven_controller.sandbox.monty import MontySandbox

        return MontySandbox(functions, limits)
    assert walls.machine is not None
    landlock = walls.landlock if chosen == "landlock+seccomp" else 0
    return LockedSandbox(chosen, walls.machine, landlock, profile, functions, limits)


class LockedSandbox:
    """Code in a child behind seccomp, with Landlock or without."""

    def __init__(
        self,
        backend: Backend,
        machine: Machine,
        landlock: int,
        profile: Profile,
        functions: Functions,
        limits: Limits,
    ) -> None:
        self.backend = backend
        self._functions, self._limits = functions, limits
        self._assigned: dict[str, bytes] = {}  # frames, for the next child
        self._number = 0
        self._start = lambda: LockedChild(machine, landlock, profile, limits, functions)
        self._child: LockedChild | None = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def assign(self, name: str, value: object) -> None:
        data = assigned(name, value)
        self._put(self._running(), name, data)
        self._assigned[name] = data

    def run(self, code: str) -> Block:
        child = self._running()
        self._number += 1
        conversation = Conversation(self._functions, self._limits)
        try:
            request = frame(frames.RUN, b"%d\0%s" % (self._number, code.encode("utf-8", "surrogatepass")))
        except FrameError as error:
            raise ConfigError(f"the block has {error}; shorten it") from None
        try:
            block = conversation.hold(child, request)
        except BaseException:
            self.close()
            raise
        if block.namespace_lost:
            self.close()
        return block

    def _running(self) -> LockedChild:
        if self._child is None:
            child = self._start()
            for name, data in self._assigned.items():
                self._put(child, name, data)
            self._child = child
        return self._child

    def _put(self, child: LockedChild, name: str, data: bytes) -> None:
        block = Conversation({}, self._limits).hold(child, data)
        if block.ended != "completed":
            child.kill()
            self._child = None
            raise ProcessError(
                f"{name} of {len(data) / 1e6:.1f} MB did not get into the sandbox ({block.error}); it has "
                f"{self._limits.memory_bytes / 1e6:g} MB (memory_bytes): cut it, or allow more"
            )


def assigned(name: str, value: object) -> bytes:
    """The frame that assigns. Raises ConfigError."""
    if not name.isidentifier():
        raise ConfigError(f"{name!r} cannot be the name of a variable in the sandbox; take another")
    head = name.encode() + b"\0"
    try:
        if isinstance(value, str):
            return frame(frames.TEXT, head + value.encode("utf-8", "surrogatepass"))
        return frame(frames.VALUE, head + frames.encode(value))
    except FrameError as error:
        raise ConfigError(f"{name} cannot go into the sandbox: {error}; give text, or what JSON can hold") from None


class Conversation:
    """One request and all that the child says until it is done."""

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._output: dict[int, list[bytes]] = {frames.OUT: [], frames.ERR: []}
        self._answer: Answer | None = None
        self._refused: list[str] = []
        self._calls = self._received = self._printed = self._dropped = 0
        self._host_s = 0.0

    def hold(self, child: LockedChild, request: bytes) -> Block:
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

    def _listen(self, child: LockedChild, deadline: float) -> tuple[Ended, str]:
        limits = self._limits
        while True:
            kind, payload = child.receive(deadline)
            self._received += len(payload)
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
                self._refused.append(payload.decode(errors="replace"))
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

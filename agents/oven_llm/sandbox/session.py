"""The sandbox as its users hold it: blocks of code in, their outcomes out, whatever the code does."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Protocol, Self

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox import frames
from oven_llm.sandbox.bpf import Machine
from oven_llm.sandbox.exchange import Block, Conversation, Functions
from oven_llm.sandbox.frames import FrameError, frame
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.locked_child import LockedChild
from oven_llm.sandbox.probe import Backend, choose, probe
from oven_llm.sandbox.profiles import REPL, Profile


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

    def interrupt(self) -> None:
        """From another thread: the block that runs ends as one that died. monty's ends at its deadline."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


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
        from oven_llm.sandbox.monty import MontySandbox

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
        self._start = partial(LockedChild, machine, landlock, profile, limits, functions)
        self._child: LockedChild | None = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def interrupt(self) -> None:
        if (child := self._child) is not None:
            child.interrupt()

    @property
    def pid(self) -> int | None:
        """Of the child, if there is one now."""
        return self._child.pid if self._child is not None else None

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
            child.resume()
            block = conversation.hold(child, request)
        except BaseException:
            self.close()
            raise
        if block.namespace_lost:
            self.close()
        else:
            child.pause()
        return block

    def _running(self) -> LockedChild:
        if self._child is None:
            child = self._start()
            for name, data in self._assigned.items():
                self._put(child, name, data)
            self._child = child
        return self._child

    def _put(self, child: LockedChild, name: str, data: bytes) -> None:
        child.resume()
        block = Conversation({}, self._limits).hold(child, data)
        if block.ended != "completed":
            child.kill()
            self._child = None
            raise ProcessError(
                f"{name} of {len(data) / 1e6:.1f} MB did not get into the sandbox ({block.error}); it has "
                f"{self._limits.memory_bytes / 1e6:g} MB (memory_bytes): cut it, or allow more"
            )
        child.pause()


def assigned(name: str, value: object) -> bytes:
    """The frame that assigns. Raises ConfigError."""
    if not name.isidentifier():
        raise ConfigError(f"{name!r} cannot be the name of a variable in the sandbox; take another")
    head = name.encode() + b"\0"
    kind, data = frames.TEXT, b""
    try:
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogatepass")
        else:
            kind, data = frames.VALUE, frames.encode(value)
    except FrameError as error:
        raise ConfigError(f"{name} cannot go into the sandbox: {error}; give text, or what JSON can hold") from None
    try:
        return frame(kind, head + data)
    except FrameError as error:
        raise ConfigError(f"{name} cannot go into the sandbox: {error}; give less") from None

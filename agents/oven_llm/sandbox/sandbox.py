"""Defines the sandbox: the abstract class, the outcome of a block of code, and errors for host functions to raise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from oven_llm.sandbox.backend_detection import Backend

BlockEnding = Literal["completed", "error", "timeout", "died", "protocol", "limit"]
"""How a block ended: it ran to its end or called FINAL (`completed`), raised an exception (`error`), ran too long
(`timeout`), exited unexpectedly (`died`), sent an invalid frame (`protocol`), or sent too much data or called too many
functions (`limit`). The process survives only `completed` and `error`."""
Functions = Mapping[str, Callable[..., Any]]
"""The host's functions by their names in the sandbox. Arguments and results are JSON values."""


@dataclass(frozen=True)
class FinalAnswer:
    """The value passed to FINAL, which may be 0, "" or None."""

    value: Any


@dataclass(frozen=True)
class Block:
    """The outcome of a block of code."""

    ending: BlockEnding
    stdout: str
    stderr: str
    """Standard error, with a traceback at its end if the block failed."""
    error: str
    """One line with the reason; empty if the block completed."""
    answer: FinalAnswer | None
    """The first answer, even if the block did not complete."""
    refusal_reasons: tuple[str, ...]
    """Reasons why values passed to FINAL were refused, e.g. because they were too large."""
    call_count: int
    """Number of calls to the host's functions."""
    child_s: float
    """Seconds spent in the child. The time limit of a block applies to them."""
    host_s: float
    """Seconds spent in the host's functions."""
    dropped_count: int
    """Amount of output beyond the limit: characters dropped by the child, plus bytes dropped by the host."""
    namespace_lost: bool
    """Whether the process is gone. The next block runs in a new process, with the assigned variables but no others."""


class Sandbox(AbstractContextManager["Sandbox"], ABC):
    """A process with a namespace that persists between blocks. Only one thread may use it at a time."""

    backend: Backend

    @abstractmethod
    def assign(self, name: str, value: object) -> None:
        """Assign a string or a JSON value to a variable. Raises ConfigError if it is too large or of another type."""

    @abstractmethod
    def run(self, code: str) -> Block:
        """Run a block and return its outcome. Raises ProcessError only if no process can be started."""

    @abstractmethod
    def close(self) -> None:
        """Stop the process and everything that runs in it."""

    @abstractmethod
    def interrupt(self) -> None:
        """Stop the running block from another thread. Blocks in monty cannot be stopped before their deadline."""

    def __exit__(self, *_: object) -> None:
        self.close()


class CallError(Exception):
    """Raised by a host function to pass an error message to the calling code. The code sees only the type of any other
    error, because the message may contain a key or a path."""

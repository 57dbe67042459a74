"""The backend `pydantic-monty`: an interpreter of a part of Python that has no files and no network to give away.

It runs where the kernel has no walls, on other systems too. Its worker is a separate process, which enforces time and
memory; the namespace lasts from block to block. What its Python lacks is in docs/sandbox.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox import frames
from oven_llm.sandbox.exchange import Answer, Block, CallError, Ended, Functions
from oven_llm.sandbox.frames import FrameError
from oven_llm.sandbox.inside.captured_output import cut
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.probe import EXTRA, Backend

GRACE_S = 1.0
"""After the deadline of a block its worker is killed: one operation may not look at the clock."""
SUSPENSIONS = 10**9
"""Monty's own limit on calls counts over a session; ours is one for each block."""


class _Answered(SystemExit):
    """Ends a block after FINAL: of what monty raises in the code, only this passes `except Exception`."""


class MontySandbox:
    """Raises ConfigError where the package or its binary is missing, ProcessError where its worker does not start."""

    backend: Backend = "monty"

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._assigned: dict[str, object] = {}
        try:
            import pydantic_monty

            self._monty = pydantic_monty
            self._pool = pydantic_monty.Monty(
                min_processes=1, max_processes=1, max_checkouts_per_worker=1, feed_duration_limit_grace=GRACE_S
            )
        except (ImportError, FileNotFoundError):
            raise ConfigError(
                f'the sandbox needs pydantic-monty and its binary: pip install "oven-controller[{EXTRA}]"'
            ) from None
        self._exits = contextlib.ExitStack()
        self._session: Any = None
        try:
            self._exits.enter_context(self._pool)
        except (pydantic_monty.MontyError, OSError) as error:
            raise ProcessError(f"the sandbox's worker does not start: {error}") from None
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._drop()
        self._exits.close()

    def interrupt(self) -> None:
        """The interpreter takes no signal from outside: its deadline ends the block."""

    def assign(self, name: str, value: object) -> None:
        if not name.isidentifier():
            raise ConfigError(f"{name!r} cannot be the name of a variable in the sandbox; take another")
        _checked(name, value)
        self._put(self._running(), name, value)
        self._assigned[name] = value

    def _put(self, session: Any, name: str, value: object) -> None:
        block = _Run(session, {}, self._limits, self._monty).hold("pass", {name: value})
        if block.ended != "completed":
            self._drop()
            raise ProcessError(
                f"{name} did not get into the sandbox ({block.error}); it has {self._limits.memory_bytes / 1e6:g} MB "
                "(memory_bytes): cut it, or allow more"
            )

    def run(self, code: str) -> Block:
        session = self._running()
        try:
            block = _Run(session, self._functions, self._limits, self._monty).hold(code, {})
        except BaseException:
            self._drop()
            raise
        if block.namespace_lost:
            self._drop()
        return block

    def _running(self) -> Any:
        if self._session is None:
            self._start()
            for name, value in self._assigned.items():
                self._put(self._session, name, value)
        return self._session

    def _start(self) -> None:
        try:
            session = self._pool.checkout(
                limits={
                    "max_feed_duration_secs": self._limits.block_s,
                    "max_memory": self._limits.memory_bytes,
                    "max_suspensions": SUSPENSIONS,
                },
                os_policy={"sleep": "zero"},  # its clock would not count: a block could sleep past its deadline
            )
            session.__enter__()
        except (self._monty.MontyError, OSError) as error:
            raise ProcessError(f"the sandbox's worker does not start: {error}") from None
        self._session = session

    def _drop(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with contextlib.suppress(self._monty.MontyError):
                session.__exit__(None, None, None)


def _checked(name: str, value: object) -> None:
    """Raises ConfigError for what the other backends do not take, either."""
    try:
        size = len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else len(frames.encode(value))
    except FrameError as error:
        raise ConfigError(f"{name} cannot go into the sandbox: {error}; give text, or what JSON can hold") from None
    if size > frames.FRAME_BYTES:
        raise ConfigError(
            f"{name} cannot go into the sandbox: {size / 1e6:.1f} MB, where {frames.FRAME_BYTES / 1e6:g} MB are the "
            "most; give less"
        )


class _Run:
    """One block in monty's session."""

    def __init__(self, session: Any, functions: Functions, limits: Limits, monty: Any) -> None:
        self._session, self._functions, self._limits, self._monty = session, functions, limits, monty
        self._output: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._printed = self._dropped = self._calls = 0
        self._host_s = 0.0
        self._answer: Answer | None = None
        self._refused: list[str] = []
        self._limit = ""

    def hold(self, code: str, inputs: dict[str, object]) -> Block:
        """Never raises for anything that the code does."""
        lookup: dict[str, Any] = {name: self._call(name, function) for name, function in self._functions.items()}
        began = time.monotonic()
        ended, error = self._fed(code, inputs, lookup | {"FINAL": self._final})
        if self._limit:
            ended, error = "limit", self._limit
        took = time.monotonic() - began
        out, err = ("".join(self._output[name]) for name in ("stdout", "stderr"))
        return Block(
            ended, out, err, error, self._answer, tuple(self._refused), self._calls, took - self._host_s,
            self._host_s, self._dropped, ended not in ("completed", "error"),
        )  # fmt: skip

    def _fed(self, code: str, inputs: dict[str, object], lookup: dict[str, Any]) -> tuple[Ended, str]:
        try:
            self._session.feed_run(code, inputs=inputs, external_lookup=lookup, print_callback=self._print)
        except self._monty.MontyCrashedError as error:
            if error.timed_out:
                return "timeout", f"it took more than {self._limits.block_s:g} s, and was ended"
            return "died", "its process ended by itself"
        except self._monty.MontyError as error:
            return self._told(error)
        except (UnicodeError, ValueError, TypeError, RecursionError) as error:
            return "error", f"{type(error).__name__}: {error}"[:500]  # code that cannot be passed on
        return "completed", ""

    def _told(self, error: Any) -> tuple[Ended, str]:
        if self._answer is not None and isinstance(error.exception(), SystemExit):
            return "completed", ""
        line = str(error).strip().splitlines()[-1][:500] if str(error).strip() else type(error).__name__
        if line.startswith("TimeoutError: feed time limit exceeded"):
            return "timeout", f"it took more than {self._limits.block_s:g} s, and was ended"
        self._print("stderr", f"{error.display() if hasattr(error, 'display') else error}\n")
        return ("died", line) if "was terminated" in line else ("error", line)

    def _print(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        kept, dropped = cut(text, self._limits.output_bytes - self._printed)
        self._printed += len(kept)
        self._dropped += dropped
        if kept:
            self._output[stream].append(kept.decode())

    def _final(self, answer: object) -> None:
        try:
            data = frames.encode(answer)
            value = frames.decode(data)
        except FrameError as error:
            self._refused.append(str(error)[:300])
            raise TypeError(f"FINAL takes what JSON can hold: {error}") from None
        if len(data) > self._limits.answer_bytes:
            self._refused.append(f"{len(data)} bytes, where {self._limits.answer_bytes} are the most")
            raise ValueError(f"FINAL takes {self._limits.answer_bytes} bytes of JSON; this answer has {len(data)}")
        if self._answer is None:
            self._answer = Answer(value)
        raise _Answered

    def _call(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> Any:
            self._calls += 1
            if self._calls > self._limits.calls:
                self._end(f"it was ended: it called the host more than {self._limits.calls} times")
            try:
                data = frames.encode({"args": args, "kwargs": kwargs})
                if len(data) > self._limits.call_bytes:
                    raise FrameError(f"{len(data)} bytes, where {self._limits.call_bytes} are the most")
                given = frames.decode(data)
            except FrameError as error:
                raise TypeError(f"{name}() takes values that JSON can hold: {error}") from None
            began = time.monotonic()
            try:
                return frames.decode(frames.encode(function(*given["args"], **given["kwargs"])))
            except CallError as error:
                raise RuntimeError(str(error)) from None
            except FrameError as error:
                raise RuntimeError(f"what {name}() returned cannot be passed on: {error}") from None
            except Exception as error:
                raise RuntimeError(f"{name}() failed: {type(error).__name__}") from None
            finally:
                self._host_s += time.monotonic() - began

        return call

    def _end(self, why: str) -> None:
        """Kill the worker: what it called for is not answered any more."""
        self._limit = why
        if (pid := self._session.worker_pid) is not None:
            os.kill(pid, signal.SIGKILL)
        raise RuntimeError(why)

"""The `pydantic-monty` backend, an interpreter for a subset of Python without files or network access.

It is used where the kernel cannot confine a process, e.g. on macOS. Its worker is a separate process, which enforces
the limits on time and memory. The namespace persists between blocks. docs/sandbox.md lists unsupported features."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any, Literal

from oven_core.errors import ConfigError, ProcessError
from oven_llm.sandbox import message_format
from oven_llm.sandbox.backend_detection import MONTY_EXTRA
from oven_llm.sandbox.child_conversation import pack_assignment
from oven_llm.sandbox.inside.captured_output import truncate
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.message_format import FrameError
from oven_llm.sandbox.sandbox import Block, BlockEnding, CallError, FinalAnswer, Functions, Sandbox

GRACE_S = 1.0
"""Seconds after a block's deadline until its worker is killed. A long operation may not check the clock in time."""
MAX_SUSPENSIONS = 10**9
"""Monty's limit on calls per session, high enough to have no effect. `Limits.calls` limits the calls per block."""


class _AnsweredExit(SystemExit):
    """Ends a block after FINAL. It is a SystemExit, which `except Exception` cannot catch in monty."""


class MontySandbox(Sandbox):
    """A sandbox that uses monty. Raises ConfigError without `pydantic-monty`, and ProcessError if its worker fails."""

    backend = "monty"

    def __init__(self, functions: Functions, limits: Limits) -> None:
        self._functions, self._limits = functions, limits
        self._assignments: dict[str, object] = {}  # values by variable, for the next session
        try:
            import pydantic_monty

            self._monty = pydantic_monty
            self._pool = pydantic_monty.Monty(
                min_processes=1, max_processes=1, max_checkouts_per_worker=1, feed_duration_limit_grace=GRACE_S
            )
        except (ImportError, FileNotFoundError):
            raise ConfigError(
                f'the sandbox requires pydantic-monty and its binary: pip install "oven-controller[{MONTY_EXTRA}]"'
            ) from None
        self._exit_stack = contextlib.ExitStack()
        self._session: Any = None
        try:
            self._exit_stack.enter_context(self._pool)
        except (pydantic_monty.MontyError, OSError) as error:
            raise ProcessError(f"could not start the sandbox's worker: {error}") from None
        self._start()

    def close(self) -> None:
        self._drop_session()
        self._exit_stack.close()

    def interrupt(self) -> None:
        """Do nothing, because the interpreter cannot be interrupted. The block ends at its deadline."""

    def assign(self, name: str, value: object) -> None:
        pack_assignment(name, value)  # raises for values that the other backends refuse
        self._send_variable(self._get_running_session(), name, value)
        self._assignments[name] = value

    def _send_variable(self, session: Any, name: str, value: object) -> None:
        block = _BlockRun(session, {}, self._limits, self._monty).run("pass", {name: value})
        if block.ending != "completed":
            self._drop_session()
            raise ProcessError(
                f"could not pass {name} to the sandbox ({block.error}); shorten it, or raise memory_bytes, which is "
                f"{self._limits.memory_bytes / 1e6:g} MB"
            )

    def run(self, code: str) -> Block:
        session = self._get_running_session()
        try:
            block = _BlockRun(session, self._functions, self._limits, self._monty).run(code, {})
        except BaseException:
            self._drop_session()
            raise
        if block.namespace_lost:
            self._drop_session()
        return block

    def _get_running_session(self) -> Any:
        if self._session is None:
            self._start()
            for name, value in self._assignments.items():
                self._send_variable(self._session, name, value)
        return self._session

    def _start(self) -> None:
        try:
            session = self._pool.checkout(
                limits={
                    "max_feed_duration_secs": self._limits.block_s,
                    "max_memory": self._limits.memory_bytes,
                    "max_suspensions": MAX_SUSPENSIONS,
                },
                os_policy={"sleep": "zero"},  # monty's clock does not count sleep, so a block could exceed its deadline
            )
            session.__enter__()
        except (self._monty.MontyError, OSError) as error:
            raise ProcessError(f"could not start the sandbox's worker: {error}") from None
        self._session = session

    def _drop_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with contextlib.suppress(self._monty.MontyError):
                session.__exit__(None, None, None)


class _BlockRun:
    """The execution of one block in a monty session."""

    def __init__(self, session: Any, functions: Functions, limits: Limits, monty: Any) -> None:
        self._session, self._functions, self._limits, self._monty = session, functions, limits, monty
        self._output: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._printed_bytes = self._dropped_count = self._call_count = 0
        self._host_s = 0.0
        self._answer: FinalAnswer | None = None
        self._refusal_reasons: list[str] = []
        self._exceeded_limit = ""

    def run(self, code: str, inputs: dict[str, object]) -> Block:
        """Run the block and return its outcome. The code cannot cause an exception here."""
        lookup: dict[str, Any] = {"FINAL": self._final}
        for name, function in self._functions.items():
            lookup[name] = self._wrap_host_function(name, function)
        started = time.monotonic()
        ending, error = self._feed(code, inputs, lookup)
        if self._exceeded_limit:
            ending, error = "limit", self._exceeded_limit
        elapsed = time.monotonic() - started
        stdout, stderr = "".join(self._output["stdout"]), "".join(self._output["stderr"])
        return Block(
            ending, stdout, stderr, error, self._answer, tuple(self._refusal_reasons),
            call_count=self._call_count, child_s=elapsed - self._host_s, host_s=self._host_s,
            dropped_count=self._dropped_count, namespace_lost=ending not in ("completed", "error"),
        )  # fmt: skip

    def _feed(self, code: str, inputs: dict[str, object], lookup: dict[str, Any]) -> tuple[BlockEnding, str]:
        """Run the code with these variables and functions. Return how it ended, and its error line."""
        try:
            self._session.feed_run(code, inputs=inputs, external_lookup=lookup, print_callback=self._print)
        except self._monty.MontyCrashedError as error:
            if error.timed_out:
                return "timeout", f"the block was stopped after {self._limits.block_s:g} s"
            return "died", "the process exited unexpectedly"
        except self._monty.MontyError as error:
            return self._classify_error(error)
        except (UnicodeError, ValueError, TypeError, RecursionError) as error:
            return "error", f"{type(error).__name__}: {error}"[:500]  # the code cannot be passed to the worker
        return "completed", ""

    def _classify_error(self, error: Any) -> tuple[BlockEnding, str]:
        if self._answer is not None and isinstance(error.exception(), SystemExit):
            return "completed", ""
        message = str(error).strip()
        last_line = message.splitlines()[-1][:500] if message else type(error).__name__
        if last_line.startswith("TimeoutError: feed time limit exceeded"):
            return "timeout", f"the block was stopped after {self._limits.block_s:g} s"
        self._print("stderr", f"{error.display() if hasattr(error, 'display') else error}\n")
        return ("died", last_line) if "was terminated" in last_line else ("error", last_line)

    def _print(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        data, dropped_count = truncate(text, self._limits.output_bytes - self._printed_bytes)
        self._printed_bytes += len(data)
        self._dropped_count += dropped_count
        if data:
            self._output[stream].append(data.decode())

    def _final(self, answer: object) -> None:
        try:
            data = message_format.encode(answer)
            value = message_format.decode(data)
        except FrameError as error:
            self._refusal_reasons.append(str(error)[:300])
            raise TypeError(f"FINAL requires a JSON value: {error}") from None
        if len(data) > self._limits.answer_bytes:
            self._refusal_reasons.append(f"it has {len(data)} bytes; the limit is {self._limits.answer_bytes}")
            raise ValueError(
                f"FINAL accepts at most {self._limits.answer_bytes} bytes of JSON; this answer has {len(data)}"
            )
        if self._answer is None:
            self._answer = FinalAnswer(value)
        raise _AnsweredExit

    def _wrap_host_function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> Any:
            self._call_count += 1
            if self._call_count > self._limits.calls:
                self._kill_worker(
                    f"the block was stopped because it called functions more than {self._limits.calls} times"
                )
            try:
                data = message_format.encode({"args": args, "kwargs": kwargs})
                if len(data) > self._limits.call_bytes:
                    raise FrameError(f"the arguments have {len(data)} bytes; the limit is {self._limits.call_bytes}")
                arguments = message_format.decode(data)
            except FrameError as error:
                raise TypeError(f"{name}() requires JSON values: {error}") from None
            started = time.monotonic()
            try:
                result = function(*arguments["args"], **arguments["kwargs"])
                return message_format.decode(message_format.encode(result))
            except CallError as error:
                raise RuntimeError(str(error)) from None
            except FrameError as error:
                raise RuntimeError(f"the result of {name}() is not a JSON value: {error}") from None
            except Exception as error:
                raise RuntimeError(f"{name}() failed: {type(error).__name__}") from None
            finally:
                self._host_s += time.monotonic() - started

        return call

    def _kill_worker(self, reason: str) -> None:
        """Kill the worker without replying to its call. Raises RuntimeError."""
        self._exceeded_limit = reason
        if (pid := self._session.worker_pid) is not None:
            os.kill(pid, signal.SIGKILL)
        raise RuntimeError(reason)

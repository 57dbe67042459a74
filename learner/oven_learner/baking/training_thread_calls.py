"""Runs calls from other threads in the training thread, between two steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from oven_core.errors import ConfigError, reason

Call = tuple[Callable[[], object], "Future[object]"]


class TrainingThreadCalls:
    """A queue of calls from other threads. Each caller waits until the training thread has run its call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._end_reason = ""
        """The reason why no more steps will run, or an empty string."""
        self._training_thread = 0
        """Id of the training thread."""

    def submit(self, call: Callable[[], object]) -> None:
        """Run a function in the training thread, and wait for it. Re-raises its errors. Raises ConfigError if training
        ends before the call runs, or if this is the training thread."""
        if threading.get_ident() == self._training_thread:
            raise ConfigError("the training thread would wait for itself; call from another thread")
        result: Future[object] = Future()
        with self._lock:
            if self._end_reason:
                raise ConfigError(self._end_reason)
            self._waiting.append((call, result))
        result.result()

    def run_waiting_calls(self) -> None:
        """Run all waiting calls, in the training thread. Re-raises exceptions that end the thread."""
        while (entry := self._next_call()) is not None:
            call, result = entry
            try:
                result.set_result(call())
            except Exception as error:  # `submit` raises it in the calling thread
                result.set_exception(error)
            except BaseException as error:
                result.set_exception(ConfigError(f"training ended during the call ({reason(error)})"))
                raise

    @contextmanager
    def during_training(self) -> Iterator[None]:
        """Accept calls during a training run. Calls that are not done at the end, or come later, raise ConfigError."""
        with self._lock:
            self._end_reason, self._training_thread = "", threading.get_ident()
        end_reason = "training has ended"
        try:
            yield
        except BaseException as error:
            end_reason += f" ({reason(error)})"
            raise
        finally:
            with self._lock:
                self._end_reason, self._training_thread = end_reason, 0
            while (entry := self._next_call()) is not None:
                _, result = entry
                result.set_exception(ConfigError(end_reason))

    def _next_call(self) -> Call | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

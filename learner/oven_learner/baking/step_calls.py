"""Run calls from other threads in the training thread, between two steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from oven_core.errors import ConfigError, reason

Call = tuple[Callable[[], object], "Future[object]"]


class StepCalls:
    """A queue of calls from other threads. Each caller waits until the training thread has run its call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._ended = ""
        """The reason why no more steps follow."""
        self._thread = 0
        """Id of the training thread."""

    def ask(self, call: Callable[[], object]) -> None:
        """Run a function in the training thread, and wait for it. Re-raises its errors.

        Raises ConfigError if training has ended or ends first, or if this is the training thread.
        """
        if threading.get_ident() == self._thread:
            raise ConfigError("the training's own thread would wait for itself; call from another thread")
        done: Future[object] = Future()
        with self._lock:
            if self._ended:
                raise ConfigError(self._ended)
            self._waiting.append((call, done))
        done.result()

    def make(self) -> None:
        """Run all waiting calls, in the training thread. Exceptions that end the thread are re-raised here."""
        while (waiting := self._next()) is not None:
            call, done = waiting
            try:
                done.set_result(call())
            except Exception as error:  # it belongs to the caller
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(ConfigError(f"training was ended during the call ({reason(error)})"))
                raise

    @contextmanager
    def during_training(self) -> Iterator[None]:
        """Accept calls during a training. Calls that wait at its end or come later are rejected with the reason."""
        with self._lock:
            self._ended, self._thread = "", threading.get_ident()
        why = "training has ended"
        try:
            yield
        except BaseException as error:
            why += f" ({reason(error)})"
            raise
        finally:
            with self._lock:
                self._ended, self._thread = why, 0
            while (waiting := self._next()) is not None:
                waiting[1].set_exception(ConfigError(why))

    def _next(self) -> Call | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

"""Calls from other threads that have to be made between two steps, in the training's own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from oven_core.errors import ConfigError, reason

Call = tuple[Callable[[], object], "Future[object]"]


class StepCalls:
    """The thread that asks waits as long as a step takes; the training makes the calls when one is through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._ended = ""
        """Why no step follows."""
        self._thread = 0
        """The training's."""

    def ask(self, call: Callable[[], object]) -> None:
        """Have it called, and wait for that. Raises what it raised, and ConfigError where training has ended, or ends
        first, or where this is its own thread."""
        if threading.get_ident() == self._thread:
            raise ConfigError("this is the training's own thread, which would wait for itself; ask from another one")
        done: Future[object] = Future()
        with self._lock:
            if self._ended:
                raise ConfigError(self._ended)
            self._waiting.append((call, done))
        done.result()

    def make(self) -> None:
        """In the training's thread: all that wait. What ends the thread is the training's, and raised here."""
        while (waiting := self._next()) is not None:
            call, done = waiting
            try:
                done.set_result(call())
            except Exception as error:  # it is the asker's
                done.set_exception(error)
            except BaseException as error:
                done.set_exception(ConfigError(f"training was ended during the call ({reason(error)})"))
                raise

    @contextmanager
    def during_training(self) -> Iterator[None]:
        """Around a training. After it no step follows: what waits then, or is asked later, is turned down with the
        reason."""
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

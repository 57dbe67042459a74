"""Calls from other threads that have to be made between two steps, in the training's own."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future

from oven_controller.errors import ConfigError


class StepCalls:
    """The thread that asks waits; the training makes the calls when a step is through."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] = queue.SimpleQueue()

    def ask(self, call: Callable[[], object], limit_s: float) -> None:
        """Have it called, and wait for that. Raises what it raised, and TimeoutError."""
        done: Future[object] = Future()
        self._waiting.put((call, done))
        done.result(limit_s)

    def make(self) -> None:
        """In the training's thread: all that wait."""
        while not self._waiting.empty():
            call, done = self._waiting.get()
            try:
                done.set_result(call())
            except Exception as error:  # it is the asker's
                done.set_exception(error)

    def end(self) -> None:
        """No step follows: what waits is turned down."""
        while not self._waiting.empty():
            self._waiting.get()[1].set_exception(ConfigError("training has ended"))

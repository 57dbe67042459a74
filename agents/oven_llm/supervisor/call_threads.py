"""Threads that wait for models. None of them keeps the process alive: a model that hangs is left behind."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class CallThreads(Generic[_Result]):
    """At most `most` calls at a time, in the order of their submission. `concurrent.futures` has no daemon threads: at
    exit its executor waits for each call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[tuple[Future[_Result], Callable[[], _Result]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, call: Callable[[], _Result]) -> Future[_Result]:
        """For one thread at a time. The call sees the context variables of the caller."""
        context = contextvars.copy_context()
        future: Future[_Result] = Future()
        self._queue.put((future, lambda: context.run(call)))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._serve, name=f"model-call-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Threads end with the call that they are in."""
        for _ in range(self._started):
            self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            self._idle.release()

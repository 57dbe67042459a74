"""Runs an event loop in its own thread, for synchronous programs that call models."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop that runs until the process ends. A forked process starts its own loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine in the loop and return its result. If the wait is interrupted, the coroutine is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._get_running_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _get_running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of this process. The first call starts its thread."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=self._loop.run_forever, name="models", daemon=True)
                thread.start()
                atexit.register(_stop, self._loop, thread, self._pid)
            return self._loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid == os.getpid():  # a forked process inherits this exit handler, but not the thread
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


SHARED = LoopThread()
"""The loop of all models in this process. Their connections belong to this loop."""

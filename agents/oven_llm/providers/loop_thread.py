"""An event loop in its own thread, for programs that are not asynchronous and ask models all the same."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """One loop for the life of the process. A process that was forked from one with a loop starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Starts the coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Its result. The coroutine is cancelled where the wait is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=self._loop.run_forever, name="models", daemon=True)
                thread.start()
                atexit.register(_end, self._loop, thread, self._pid)
            return self._loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid == os.getpid():
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


SHARED = LoopThread()
"""All that ask models in this process: their connections belong to its loop."""

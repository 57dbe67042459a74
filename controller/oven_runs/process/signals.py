"""Signal handling of `up`: the first SIGINT, SIGTERM or SIGHUP ends the run cleanly, the second one at once.

The handlers are Python's instead of the event loop's, because the loop may hang, for example when it writes to a pipe
without a reader. A thread kills an `up` that hangs after the second signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import threading
import types
from collections.abc import Callable, Iterator

import psutil

from oven_runs.process import terminal

FORCED_S = 10.0
"""Seconds from the second signal until everything is killed. A third signal forces that at once."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled_by(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Make the event loop call `on_signal` with each signal inside this context."""
    loop = asyncio.get_running_loop()
    modes = terminal.modes()
    # Only a SimpleQueue may be used in a signal handler. 0 means that the context has ended.
    received: queue.SimpleQueue[int] = queue.SimpleQueue()

    def last_resort() -> None:
        if not received.get():
            return
        number = received.get()
        if not number:
            return
        with contextlib.suppress(queue.Empty):
            while not received.get(timeout=FORCED_S):  # the context ended, but the rest of the process may still hang
                continue
        kill_family()
        terminal.take_back(modes)
        os._exit(128 + number)

    def handle(number: int, _frame: types.FrameType | None) -> None:
        received.put(number)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_signal, number)

    threading.Thread(target=last_resort, name="last-resort", daemon=True).start()
    # Under nohup, SIGHUP stays ignored.
    numbers = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        received.put(0)


def kill_family() -> None:
    """Send SIGKILL to all descendants of this process and to the rest of their sessions."""
    family = psutil.Process().children(recursive=True)
    own, sessions = os.getsid(0), set()
    for process in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            sessions.add(os.getsid(process.pid))
    for process in family:
        with contextlib.suppress(psutil.Error):  # it has ended; psutil does not kill another process with its id
            process.kill()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions - {own}:
                os.kill(pid, signal.SIGKILL)

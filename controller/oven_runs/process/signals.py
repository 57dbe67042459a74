"""`up`'s signals: the first SIGINT, SIGTERM or SIGHUP ends the run in order, the second at once.

After the second nothing that hangs keeps it.

The handlers are Python's and not the event loop's, and a thread ends an `up` that hangs: the loop itself may be what
does, in a line that no one reads at the other end of a pipe, say.
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
"""From the second signal to the last resort; a third one does not wait."""
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled_by(on_signal: Callable[[int], None]) -> Iterator[None]:
    """While the context lasts, the event loop calls `on_signal` with each signal."""
    loop = asyncio.get_running_loop()
    modes = terminal.modes()
    came: queue.SimpleQueue[int] = queue.SimpleQueue()  # the only one that a signal's handler may put to

    def last_resort() -> None:
        if not came.get():
            return
        number = came.get()
        if not number:
            return
        with contextlib.suppress(queue.Empty):
            while not came.get(timeout=FORCED_S):  # the context's end, where the rest of this process may still hang
                continue
        kill_family()
        terminal.take_back(modes)
        os._exit(128 + number)

    def handle(number: int, _frame: types.FrameType | None) -> None:
        came.put(number)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(on_signal, number)

    threading.Thread(target=last_resort, name="last-resort", daemon=True).start()
    # Under nohup SIGHUP is ignored, and stays so.
    numbers = [number for number in NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        came.put(0)


def kill_family() -> None:
    """SIGKILL to all that this process started, and to what is left of their sessions."""
    family = psutil.Process().children(recursive=True)
    own, sessions = os.getsid(0), set()
    for process in family:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            sessions.add(os.getsid(process.pid))
    for process in family:
        with contextlib.suppress(psutil.Error):  # it has ended; psutil kills no other with its id
            process.kill()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions - {own}:
                os.kill(pid, signal.SIGKILL)

"""Signal handling of `up`: the first SIGINT, SIGTERM or SIGHUP ends the run cleanly, the second one at once.

The handlers are installed with `signal.signal`, because the event loop may hang, for example when it writes to a pipe
without a reader. If `up` hangs after the second signal, a thread kills it.
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

from oven_runs.process import foreground_process

FORCE_AFTER_S = 10.0
"""Seconds from the second signal until everything is killed. A third signal kills everything at once."""
HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handle_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Make the event loop call `on_signal` with each signal inside this context."""
    loop = asyncio.get_running_loop()
    modes = foreground_process.terminal_modes()
    # Only a SimpleQueue may be used in a signal handler. 0 means that the context has ended.
    signal_queue: queue.SimpleQueue[int] = queue.SimpleQueue()

    def force_exit() -> None:
        """Wait for two signals inside the context, then kill everything after FORCE_AFTER_S or at the third signal."""
        if not signal_queue.get():
            return
        number = signal_queue.get()
        if not number:
            return
        with contextlib.suppress(queue.Empty):
            while not signal_queue.get(timeout=FORCE_AFTER_S):  # 0: the context ended, but the process may hang later
                continue
        kill_descendants()
        foreground_process.restore_terminal(modes)
        os._exit(128 + number)

    def handle(number: int, _frame: types.FrameType | None) -> None:
        signal_queue.put(number)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(on_signal, number)

    threading.Thread(target=force_exit, name="force-exit", daemon=True).start()
    # Under nohup, SIGHUP stays ignored.
    numbers = [number for number in HANDLED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        signal_queue.put(0)


def kill_descendants() -> None:
    """Send SIGKILL to all descendants of this process and to the rest of their sessions."""
    descendants = psutil.Process().children(recursive=True)
    own_session, sessions = os.getsid(0), set()
    for process in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            sessions.add(os.getsid(process.pid))
    for process in descendants:
        # A process may have ended. psutil does not kill another process that has the same id.
        with contextlib.suppress(psutil.Error):
            process.kill()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) in sessions - {own_session}:
                os.kill(pid, signal.SIGKILL)

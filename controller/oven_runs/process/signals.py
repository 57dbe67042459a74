"""Signal handling of `up`: the first SIGINT, SIGTERM or SIGHUP ends the run cleanly, the second one at once.

A thread receives the signals, because the event loop may hang, for example when it writes to a pipe without a reader.
If `up` hangs after the second signal, the thread kills it. The interpreter passes a signal to it at once, in whichever
thread the signal arrives (`signal.set_wakeup_fd`). Python's own handlers run only when the main thread does not hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator

import psutil

from oven_runs.process import foreground_process

FORCE_AFTER_S = 10.0
"""Seconds from the second signal until everything is killed. A third signal kills everything at once."""
HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handle_signals(on_signal: Callable[[int], None]) -> Iterator[None]:
    """Make the event loop call `on_signal` with each signal inside this context. Only the main thread may enter it."""
    loop = asyncio.get_running_loop()
    modes = foreground_process.terminal_modes()
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def receive(timeout_s: float | None = None) -> int:
        """Return the number of the next signal, or 0 at the end of the context. Raises TimeoutError."""
        reader.settimeout(timeout_s)
        while number := reader.recv(1):
            if number[0] in HANDLED_SIGNALS:
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(on_signal, number[0])
                return number[0]
        return 0

    def force_exit() -> None:
        """Wait for two signals inside the context, then kill everything after FORCE_AFTER_S or at the third signal."""
        with reader:
            if not (receive() and (number := receive())):
                return
            with contextlib.suppress(TimeoutError):
                if not receive(FORCE_AFTER_S):  # the context ended, but the process may hang later
                    time.sleep(FORCE_AFTER_S)
        kill_descendants()
        foreground_process.restore_terminal(modes)
        os._exit(128 + number)

    threading.Thread(target=force_exit, name="force-exit", daemon=True).start()
    # Under nohup, SIGHUP stays ignored.
    numbers = [number for number in HANDLED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, _do_nothing) for number in numbers}
    previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_fd)
        writer.close()


def _do_nothing(_number: int, _frame: types.FrameType | None) -> None:
    """Replace the default action of a signal. The interpreter writes its number to the wakeup file descriptor."""


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

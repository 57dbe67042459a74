"""`python -m oven_controller.stack.guard FD [aside] -- COMMAND…`: run a command that cannot watch a pipe by itself.

When the pipe behind FD closes (its writer ended, even by kill -9), the command's whole process group gets SIGTERM and,
after a grace, SIGKILL. Signals are passed on to the group; SIGUSR1 kills it. Imports nothing but the standard library:
it stands beside every foreign process. `aside`: the command keeps off the trainer's cores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

from oven_controller.stack.aside import follow, keep_off

GRACE_S = 10.0
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def main() -> int:
    at = sys.argv.index("--")
    fd, command = int(sys.argv[1]), sys.argv[at + 1 :]
    halves = keep_off() if "aside" in sys.argv[2:at] else None
    early: list[int] = []
    for number in HANDLED:
        signal.signal(number, lambda number, _frame: early.append(number))
    try:
        # A group of its own, but this session: whoever has to end it without this guard finds it there.
        child = subprocess.Popen(command, process_group=0)
    except OSError as error:
        print(f"error: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127

    def end_group() -> None:
        _signal_group(child.pid, signal.SIGTERM)
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _signal_group(child.pid, signal.SIGKILL)

    def watch() -> None:
        while os.read(fd, 64):
            pass
        end_group()

    def forward(number: int, _frame: types.FrameType | None) -> None:
        _signal_group(child.pid, signal.SIGKILL if number == signal.SIGUSR1 else number)

    for number in HANDLED:
        signal.signal(number, forward)
    for missed in early:  # came while the command was being started
        forward(missed, None)
    with _for_this_thread_alone():
        if halves:
            follow(child.pid, halves)
        threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # what the command left behind in its group
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _for_this_thread_alone() -> Iterator[None]:
    """Threads started within never get a signal. The second of two that come together would go to such a thread, while
    this one, which alone runs handlers, may be back in waiting for the command already and never hear of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())

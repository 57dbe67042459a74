"""`python -m oven_controller.stack.guard FD -- COMMAND…`: run a command that cannot watch a pipe by itself.

When the pipe behind FD closes (its writer ended, even by kill -9), the command's whole process group gets SIGTERM and,
after a grace, SIGKILL. Imports nothing but the standard library: it stands beside every foreign process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import types

GRACE_S = 10.0


def main() -> int:
    fd, command = int(sys.argv[1]), sys.argv[3:]
    child = subprocess.Popen(command, start_new_session=True)

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
        _signal_group(child.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # what the command left behind in its group
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    sys.exit(main())

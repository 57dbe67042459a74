"""Wakes the relay thread when the training thread has sent a message, without a system call on the training thread.

Waking another thread is a system call, which takes up to 50 µs. And a relay that polled would take the interpreter from
the training thread at each poll. So the training thread only sets a number in shared memory to 1. A thread of the
worker process looks at it often, resets it, and writes a byte to the pipe on which the relay waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Final

from oven_learner.link.pipes import SharedNumbers

LOOK_S: Final = 0.0005
MAX_LOOK_S: Final = 0.005
"""Minimum and maximum seconds between two looks at the number."""
LOOK_SHARE: Final = 0.02
"""Seconds between two looks, as a share of the time since the last message. So a message waits for at most about this
share of a step, and the worker looks seldom while the training computes."""


def look_pause_s(silent_s: float) -> float:
    """Return the seconds until the next look, given the seconds since the last message."""
    return min(max(LOOK_S, LOOK_SHARE * silent_s), MAX_LOOK_S)


def ring(numbers: SharedNumbers, fd: int, min_interval_s: float) -> None:
    """Write a byte to `fd` whenever the training thread has sent a message, until the pipe's reader closes it.

    `min_interval_s` is the minimum interval between two bytes, in seconds, so that messages of short steps are relayed
    together."""
    os.set_blocking(fd, False)
    cells, rang_at = numbers.cells, time.monotonic()
    with contextlib.suppress(BrokenPipeError):
        while True:
            if cells[numbers.HAS_SENT]:
                cells[numbers.HAS_SENT] = 0  # before ringing, so that no message that comes now is missed
                with contextlib.suppress(BlockingIOError):  # the relay has not read the earlier bytes yet
                    os.write(fd, b".")
                time.sleep(min_interval_s)
                rang_at = time.monotonic()
            time.sleep(look_pause_s(time.monotonic() - rang_at))


class Doorbell:
    """The relay's end of the pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Wait until it rings, or for `timeout_s` seconds."""
        self._poll.poll(timeout_s * 1000)
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._fd, 64):  # the worker has ended, and the pipe would not wait any more
                time.sleep(timeout_s)

    def close(self) -> None:
        os.close(self._fd)

"""A clock for the cost of calls on the training thread: wall time minus the thread's wait in the run queue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")

SCHEDSTAT = "/proc/thread-self/schedstat"


class OnCpu:
    """A clock for the thread that enters it. Waiting for the interpreter's lock counts; waiting for a core does not.

    Without the kernel's accounting (Linux only, CONFIG_SCHED_INFO) `reads_run_queue` is False and it is a wall clock.
    """

    def __init__(self) -> None:
        self.reads_run_queue = False
        self._stat = -1

    def __enter__(self) -> Self:
        try:
            self._stat = os.open(SCHEDSTAT, os.O_RDONLY)
            self.reads_run_queue = len(os.pread(self._stat, 64, 0).split()) == 3
        except OSError:
            self.reads_run_queue = False
        return self

    def __exit__(self, *_: object) -> None:
        if self._stat >= 0:
            os.close(self._stat)

    def us(self, call: Callable[[], object]) -> float:
        return self.timed(call)[1]

    def timed(self, call: Callable[[], T]) -> tuple[T, float]:
        """The call's result, and its microseconds."""
        waited, start = self.waited_ns(), time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - start
        return result, max(0.0, (took - (self.waited_ns() - waited)) / 1e3)

    def waited_ns(self) -> int:
        """Nanoseconds in the run queue so far: the second field of the thread's schedstat."""
        return int(os.pread(self._stat, 64, 0).split()[1]) if self.reads_run_queue else 0


def nothing() -> None:
    """A call that does nothing: the resolution of a clock."""

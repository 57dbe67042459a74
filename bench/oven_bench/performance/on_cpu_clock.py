"""What calls cost the training thread: wall time less its wait in the run queue, which is the machine's business."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Self, TypeVar

T = TypeVar("T")

SCHEDSTAT = "/proc/thread-self/schedstat"


class OnCpu:
    """A clock for the thread that enters it. Waiting for the interpreter's lock counts; waiting for a core does not.

    Without the kernel's accounting (Linux only, CONFIG_SCHED_INFO) `known` is False and it is a wall clock.
    """

    def __init__(self) -> None:
        self.known = False
        self._stat = -1

    def __enter__(self) -> Self:
        try:
            self._stat = os.open(SCHEDSTAT, os.O_RDONLY)
            self.known = len(os.pread(self._stat, 64, 0).split()) == 3
        except OSError:
            self.known = False
        return self

    def __exit__(self, *_: object) -> None:
        if self._stat >= 0:
            os.close(self._stat)

    def us(self, call: Callable[[], object]) -> float:
        return self.timed(call)[1]

    def timed(self, call: Callable[[], T]) -> tuple[T, float]:
        """What the call returned, and its microseconds."""
        waited, began = self.waited_ns(), time.perf_counter_ns()
        found = call()
        took = time.perf_counter_ns() - began
        return found, max(0.0, (took - (self.waited_ns() - waited)) / 1e3)

    def waited_ns(self) -> int:
        """In the run queue so far: the second field of the thread's schedstat."""
        return int(os.pread(self._stat, 64, 0).split()[1]) if self.known else 0


def nothing() -> None:
    """The floor of what a clock can tell."""

"""Times calls of microseconds on a machine that other processes use as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from oven_bench.performance.on_cpu_clock import OnCpu

A = TypeVar("A")
R = TypeVar("R")

ROUNDS: Final = 3
"""Times that each call is made, with all others in between; the quickest counts. The slowest hundredth then contains
the cache misses that the calls cause, and not those that other processes cause."""


def quickest(arguments: Sequence[A], call: Callable[[A], R]) -> tuple[list[float], list[R]]:
    """On-CPU microseconds of each call, and what it returned."""
    best: list[float] = []
    with OnCpu() as clock:
        for _ in range(ROUNDS):
            made = [clock.timed(partial(call, argument)) for argument in arguments]
            took = [us for _, us in made]
            best = [min(pair) for pair in zip(best, took, strict=True)] if best else took
    return best, [result for result, _ in made]

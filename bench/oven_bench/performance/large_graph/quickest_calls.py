"""Times of calls that take microseconds, on a machine that others use as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from oven_bench.performance.on_cpu_clock import OnCpu

A = TypeVar("A")
R = TypeVar("R")

ROUNDS: Final = 3
"""Each call is made so often, all others in between, and the quickest counts: what another process does to the caches
is then not in the slowest hundredth, and what the calls do to them is."""


def quickest(asked: Sequence[A], call: Callable[[A], R]) -> tuple[list[float], list[R]]:
    """On-CPU microseconds of the call for each of what is asked, and what it returned."""
    best: list[float] = []
    with OnCpu() as clock:
        for _ in range(ROUNDS):
            made = [clock.timed(partial(call, one)) for one in asked]
            took = [us for _, us in made]
            best = [min(pair) for pair in zip(best, took, strict=True)] if best else took
    return best, [found for found, _ in made]

"""A pool of worker processes for the gym and the benches, which ends with the process that made it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from oven_runs.process.child import follow_spawner


def workers(jobs: int, begin: Callable[[], None] | None = None) -> ProcessPoolExecutor:
    """`jobs` workers, each a fresh interpreter, since a fork would copy the locks of torch's threads. `begin` is called
    in each before its first task. They end when this process does, even by kill -9."""
    return ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(begin,)
    )


def _begin(begin: Callable[[], None] | None) -> None:
    follow_spawner()
    if begin is not None:
        begin()

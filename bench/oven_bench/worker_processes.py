"""Fresh processes for measurements, with one thread each.

Imports only packages that every environment of `bench stacks` has.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from oven_runs.process.child_process import end_when_closed

R = TypeVar("R")

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
"""Environment of a worker, so that two workers use two cores and neither spins."""


def worker_pool(jobs: int, preload: Sequence[str] = ()) -> ProcessPoolExecutor:
    """A pool of fresh processes with one thread each, which end when this process does. With `preload`, they are forked
    from a process that has imported these modules and done nothing else."""
    context = multiprocessing.get_context("forkserver" if preload else "spawn")
    if preload:
        context.set_forkserver_preload(list(preload))
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)


def in_new_process(function: Callable[..., R], *args: Any) -> R:
    """Call a function in a new process, whose memory and caches nothing else has used."""
    with worker_pool(1) as pool:
        return pool.submit(function, *args).result()


def _start_worker() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    end_when_closed(parent.sentinel, grace_s=10.0)
    if "torch" in sys.modules:
        use_one_thread()


def use_one_thread() -> None:
    """Let torch compute on one thread of this process."""
    import torch

    torch.set_num_threads(1)

"""Where the processes of the stack run: beside the training, not in its way. Nothing but the standard library."""

from __future__ import annotations

import contextlib
import os

NICENESS = 10


def give_way() -> None:
    """Be scheduled after the training, and never in its place: six processes wake at each observation, and on a machine
    whose cores are all busy each could take the trainer's (SCHED_BATCH wakes without preempting; Linux only). A sandbox
    that forbids it is no reason not to start."""
    keep_off()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_off() -> None:
    """Keep to the upper half of the cores, so that the trainer always has some that the stack never wakes on. Measured
    on two cores, under a scheduler that packs what wakes onto busy ones: without it a step of 5 ms took a third more
    time with a process for each agent, and .06 more with it. (Linux only.)"""
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[(len(cores) + 1) // 2 :])

"""Set the CPU affinity and priority of the stack's processes, so that they do not slow down the trainer (the learner).

Some schedulers pack waking processes onto busy cores, so the cores are split between the trainer and the stack.
Without the split, a training step on a two-core machine took 10 % longer (docs/experiments.md). While the trainer waits
for a device or for judges, its cores are idle, and the stack may use them, too. This makes decisions faster, because
each one involves six processes. This module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

NICENESS = 10
SUFFICIENT_CORES = 4
"""If the stack's half has this many cores, the stack never uses those of the trainer."""
MEASURE_INTERVAL_S = 1.0
"""Seconds between two measurements of the trainer's load."""
BUSY_LOAD, IDLE_LOAD = 0.5, 0.25
"""Loads of the trainer's cores, 0..1. The stack stops using them at BUSY_LOAD and uses them again below IDLE_LOAD."""
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class CoreSplit:
    """The cores that this process may use, split between the training and the stack."""

    training: frozenset[int]
    stack: frozenset[int]

    @classmethod
    def split(cls, cores: Collection[int]) -> CoreSplit:
        """Split the cores. The stack gets the smaller half, or a single core, on which the training then runs too."""
        ordered = sorted(cores)
        training_count = (len(ordered) + 1) // 2 if len(ordered) > 1 else 0
        return cls(frozenset(ordered[:training_count]), frozenset(ordered[training_count:]))


def yield_cpu_to_training() -> None:
    """Restrict this process to the stack's cores and lower its priority, so that it does not preempt the training.

    Six processes wake up at each observation, and each could preempt the trainer if all cores are busy. SCHED_BATCH
    (only on Linux) prevents that. Calls that a sandbox forbids are skipped."""
    if split := restrict_affinity():
        follow_trainer_load(os.getpid(), split)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def restrict_affinity() -> CoreSplit | None:
    """Restrict this process to the stack's half of the cores. Return None if that is impossible or forbidden."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    split = CoreSplit.split(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, split.stack)
    except OSError:
        return None
    return split


def follow_trainer_load(pid: int, split: CoreSplit) -> None:
    """Start a thread that lets the process `pid` use all cores while those of the trainer are idle."""
    if split.training and len(split.stack) < SUFFICIENT_CORES:
        threading.Thread(target=_adjust_affinity, args=(pid, split), name="core-split", daemon=True).start()


def may_use_all_cores(uses_all: bool, load: float) -> bool:
    """Return whether the stack may use the trainer's cores, given their load (0..1) and whether it uses them now."""
    return load < (BUSY_LOAD if uses_all else IDLE_LOAD)


def core_load(before: str, after: str, cores: Collection[int]) -> float:
    """Return the load of these cores, 0..1, between two reads of /proc/stat. Processes of low priority do not count."""
    user_ticks, all_ticks = _cpu_ticks(after, cores)
    user_ticks_before, all_ticks_before = _cpu_ticks(before, cores)
    elapsed = all_ticks - all_ticks_before
    return (user_ticks - user_ticks_before) / elapsed if elapsed > 0 else 1.0


def _cpu_ticks(stat: str, cores: Collection[int]) -> tuple[int, int]:
    """Return the cores' CPU ticks in user mode at normal priority, and all their CPU ticks (see proc_stat(5))."""
    lines = (line.split() for line in stat.splitlines())
    names = {f"cpu{core}" for core in cores}
    counts = [[int(count) for count in columns[:8]] for name, *columns in lines if name in names]
    # The columns after the eighth are for guests. Their ticks are already included in the first two columns.
    return sum(core_counts[0] for core_counts in counts), sum(map(sum, counts))


def _adjust_affinity(pid: int, split: CoreSplit) -> None:
    uses_all = False
    with contextlib.suppress(OSError):  # the process has ended, or its affinity may not be changed
        before = _STAT.read_text()
        while True:
            time.sleep(MEASURE_INTERVAL_S)
            after = _STAT.read_text()
            used_all = uses_all
            uses_all = may_use_all_cores(used_all, core_load(before, after, split.training))
            before = after
            if uses_all != used_all:
                cores = split.stack | split.training if uses_all else split.stack
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread), cores)

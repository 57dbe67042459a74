"""CPU affinity and priority of the stack's processes, so that they do not slow the training. Standard library only.

Some schedulers pack waking processes onto busy cores. On two cores, a training step then took a tenth longer if the
stack could use every core instead of only the other half (docs/experiments.md). A trainer that leaves its half idle,
waiting for a device or for judges, loses nothing if the stack uses all cores. A decision passes through six processes
and is then made sooner.
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
ENOUGH = 4
"""Number of cores that is enough for the stack."""
LOOK_S = 1.0
"""Seconds between two measurements of the trainer's load."""
BUSY, IDLE = 0.5, 0.25
"""Load of the trainer's half above which the stack leaves it, and below which the stack may use it."""
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class CoreSplit:
    """The cores that this process may use, split between the training and the stack."""

    training: frozenset[int]
    stack: frozenset[int]

    @classmethod
    def split(cls, cores: Collection[int]) -> CoreSplit:
        """Split the cores; the stack gets the smaller half. A single core is shared."""
        ordered = sorted(cores)
        half = (len(ordered) + 1) // 2 if len(ordered) > 1 else 0
        return cls(frozenset(ordered[:half]), frozenset(ordered[half:]))


def lower_priority() -> None:
    """Lower this process's priority, so that it never preempts the training.

    Six processes wake at each observation, and on a machine whose cores are all busy each could take the trainer's
    core. SCHED_BATCH (Linux only) wakes without preempting. If a sandbox forbids it, the process starts anyway.
    """
    if split := restrict_affinity():
        follow(os.getpid(), split)
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


def follow(pid: int, split: CoreSplit) -> None:
    """Start a thread that lets the restricted process use all cores while the trainer's are idle."""
    if split.training and len(split.stack) < ENOUGH:
        threading.Thread(target=_follow, args=(pid, split), name="core-split", daemon=True).start()


def spread(spread: bool, busy: float) -> bool:
    """Return whether to use the trainer's half too. `busy`: its load, 0..1; `spread`: whether it is in use already."""
    return busy < (BUSY if spread else IDLE)


def busy(before: str, after: str, cores: Collection[int]) -> float:
    """Return the load of these cores, 0..1, between two readings of /proc/stat, without niced processes."""
    (user, total), (user_before, total_before) = _ticks(after, cores), _ticks(before, cores)
    return (user - user_before) / (total - total_before) if total > total_before else 1.0


def _ticks(stat: str, cores: Collection[int]) -> tuple[int, int]:
    """Return the ticks in user mode at normal niceness, and all ticks (see proc_stat(5))."""
    lines = (line.split() for line in stat.splitlines())
    counts = {name: [int(count) for count in rest[:8]] for name, *rest in lines if name.startswith("cpu")}
    mine = [counts[name] for name in (f"cpu{core}" for core in cores) if name in counts]
    return sum(count[0] for count in mine), sum(map(sum, mine))


def _follow(pid: int, split: CoreSplit) -> None:
    spreads = False
    with contextlib.suppress(OSError):  # the process is gone, or may not be moved
        before = _STAT.read_text()
        while True:
            time.sleep(LOOK_S)
            after = _STAT.read_text()
            spread_before, spreads = spreads, spread(spreads, busy(before, after, split.training))
            before = after
            if spreads != spread_before:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread), split.stack | (split.training if spreads else frozenset()))

"""Cores and priority of the stack's processes, beside the training. Nothing but the standard library.

On two cores, under a scheduler that packs what wakes onto busy ones, a training step took a tenth more time for a stack
that might wake on every core than for one that kept to the other half (docs/experiments.md). A trainer that leaves its
half idle, waiting for a device or for judges, loses nothing by it: then the stack takes all cores, and a decision that
passes through six processes is made sooner.
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
"""So many cores of its own are all that the stack can use."""
LOOK_S = 1.0
"""Between two looks at what the trainer leaves idle."""
BUSY, IDLE = 0.5, 0.25
"""Shares of the trainer's half: from the first on the stack keeps off it, below the second it may run there."""
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class CoreSplit:
    """The cores that this process may use: those that are left to the trainer, and those that the stack keeps to."""

    training: frozenset[int]
    stack: frozenset[int]

    @classmethod
    def of(cls, cores: Collection[int]) -> CoreSplit:
        """The stack's is the smaller half. A single core is everybody's."""
        ordered = sorted(cores)
        half = (len(ordered) + 1) // 2 if len(ordered) > 1 else 0
        return cls(frozenset(ordered[:half]), frozenset(ordered[half:]))


def lower_priority() -> None:
    """Be scheduled after the training, and never in its place: six processes wake at each observation, and on a machine
    whose cores are all busy each could take the trainer's (SCHED_BATCH wakes without preempting; Linux only). A sandbox
    that forbids it is not a reason not to start."""
    if split := restrict_affinity():
        follow(os.getpid(), split)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def restrict_affinity() -> CoreSplit | None:
    """Leave the trainer its half of the cores. None: that cannot be asked here (it is Linux's), or is forbidden."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    split = CoreSplit.of(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, split.stack)
    except OSError:
        return None
    return split


def follow(pid: int, split: CoreSplit) -> None:
    """Have a thread let that process, which has kept off, run on all cores for as long as the trainer's are idle."""
    if split.training and len(split.stack) < ENOUGH:
        threading.Thread(target=_follow, args=(pid, split), name="core-split", daemon=True).start()


def spread(spread: bool, busy: float) -> bool:
    """Whether to run on the trainer's half too. `busy`: the share of it that the trainer takes."""
    return busy < (BUSY if spread else IDLE)


def busy(before: str, after: str, cores: Collection[int]) -> float:
    """The share of these cores that went to what has not given way, by the system's count at two times. What has given
    way is niced, and counts apart. 1 where nothing is counted."""
    (user, total), (user_then, total_then) = _ticks(after, cores), _ticks(before, cores)
    return (user - user_then) / (total - total_then) if total > total_then else 1.0


def _ticks(stat: str, cores: Collection[int]) -> tuple[int, int]:
    """(in user mode at an ordinary niceness, altogether), see proc_stat(5)."""
    lines = (line.split() for line in stat.splitlines())
    counts = {name: [int(count) for count in rest[:8]] for name, *rest in lines if name.startswith("cpu")}
    mine = [counts[name] for name in (f"cpu{core}" for core in cores) if name in counts]
    return sum(count[0] for count in mine), sum(map(sum, mine))


def _follow(pid: int, split: CoreSplit) -> None:
    now = False
    with contextlib.suppress(OSError):  # the process is gone, or it may not be moved
        before = _STAT.read_text()
        while True:
            time.sleep(LOOK_S)
            after = _STAT.read_text()
            then, now = now, spread(now, busy(before, after, split.training))
            before = after
            if now != then:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(int(thread), split.stack | (split.training if now else frozenset()))

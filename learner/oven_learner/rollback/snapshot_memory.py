"""Decides how many snapshots of a run fit into memory, and where they are stored."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from oven_learner.ranks import Ranks
from oven_learner.rollback.memory_snapshots import MAX_LEVELS, snapshot_count

log = logging.getLogger("oven.learner")

LIMIT_BYTES = 512 * 1024 * 1024
"""Maximum bytes of all snapshots together on the device of the model."""
MAX_HOST_SHARE = 0.25
"""Maximum share of the host's available memory for the snapshots of all ranks on it."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class SnapshotMemory:
    """The memory for one rank's snapshots."""

    size: int
    """Bytes of one snapshot."""
    levels: int
    """Number of levels of snapshots (oven_learner.rollback.memory_snapshots)."""
    device: torch.device | None = None
    """Where the copies are stored, or None for the device of the originals."""

    @property
    def total(self) -> int:
        """Maximum bytes of all snapshots."""
        return self.size * snapshot_count(self.levels)


def plan_snapshots(size: int, ranks: Ranks) -> SnapshotMemory | None:
    """Return the memory for snapshots of `size` bytes on this rank, the same kind on all ranks. Return None if they do
    not fit on one of the ranks. Large snapshots are stored in the host's memory, and there are fewer of them. Log the
    figures. This is a collective."""
    host_bytes = _host_limit()
    device_levels, host_levels = (_levels_that_fit(size, limit) for limit in (LIMIT_BYTES, host_bytes))
    all_levels = ranks.all_gather((device_levels, host_levels))
    device_levels, host_levels = (min(levels) for levels in zip(*all_levels, strict=True))
    if device_levels == MAX_LEVELS:
        memory = SnapshotMemory(size, MAX_LEVELS)
    elif host_levels:
        memory = SnapshotMemory(size, host_levels, torch.device("cpu"))
    else:
        log.log(
            logging.WARNING if ranks.leader else logging.DEBUG,
            "no snapshots for run.rollback are kept in memory: %d of %s exceed %s, a rank's share of a quarter of the "
            "host's available memory; free memory, or start fewer ranks on this host",
            *(snapshot_count(1), _show(size), _show(host_bytes)),
        )
        return None
    log.log(
        logging.INFO if ranks.leader else logging.DEBUG,
        "snapshots for run.rollback take at most %s on each rank: %d of %s, %s",
        *(_show(memory.total), snapshot_count(memory.levels), _show(size)),
        "in the host's memory" if memory.device is not None else "beside the weights",
    )
    return memory


def _show(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"


def best_weights_fit(size: int, ranks: Ranks) -> bool:
    """Whether copies of the best and the last weights fit into the host's memory on all ranks. `size` is that of a
    snapshot, of which the weights are a third. This is a collective."""
    return all(ranks.all_gather(2 * size // 3 <= _host_limit()))


def _host_limit() -> int:
    """Return the maximum bytes of host memory for the snapshots of this rank."""
    return int(MAX_HOST_SHARE * available_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def available_memory() -> int:
    """Return the bytes that this process can still allocate on the host, within the limit of its cgroup."""
    available: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no cgroup, or no limit ("max")
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(0, limit - used))
    return available


def _levels_that_fit(size: int, limit: int) -> int:
    """Return the largest number of levels whose snapshots fit into `limit` bytes, or 0 if none fits."""
    return next((levels for levels in range(MAX_LEVELS, 0, -1) if size * snapshot_count(levels) <= limit), 0)

"""Rollback by restart: a new process resumes from one of the trainer's own checkpoints."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oven_learner.rollback import checkpoint_record
from oven_learner.rollback.in_memory import SnapshotSchedule, SnapshotTimeBudget
from oven_learner.rollback.rollback_protocol import Snapshot
from oven_runs.home import relaunch
from oven_runs.home.relaunch import Relaunch

log = logging.getLogger("oven.learner")

PROBE_BYTES = 32 * 1024 * 1024
"""Size of a test file, written once at the start to estimate the cost of the first save on this disk under this
load."""
KEPT = 2
"""Number of checkpoints for rollback to keep. Checkpoints that a user or agent requested are never removed."""
FREE_SIZES = 1.5
"""Free space required for another checkpoint, in multiples of the last one's size."""


def seconds_to_write(size: int, folder: Path) -> float:
    """Estimate the time to write `size` bytes to the folder, by writing a part. Infinite if this fails."""
    part = min(max(size, 1), PROBE_BYTES)
    file = folder / "oven.probe"
    noise = os.urandom(min(part, 1024 * 1024))
    began = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for _ in range(0, part, len(noise)):
                out.write(noise)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        log.warning("no checkpoint for rollback: %s cannot be written to (%s)", folder, error)
        return math.inf
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return (time.monotonic() - began) * size / part


class OnDisk:
    """Checkpoints that the trainer saves between two steps when `ask` requests one. Saves for rollback alone take at
    most `in_memory.SHARE` of wall time."""

    undoes = False

    def __init__(
        self,
        output: Path,
        run: str,
        run_folder: Path,
        *,
        training: str,
        size: int,
        fresh: bool,
        ask: Callable[[], object],
        progress: Callable[[], tuple[int, int]],
        leader: bool = True,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Args:
        training: which training of its script this is.
        size: the approximate bytes of the first checkpoint.
        fresh: the run began without a checkpoint, so that its script can start from the beginning.
        progress: returns (step, gradient steps so far).
        leader: whether this is rank 0, which reads and writes.
        share: returns rank 0's argument on every rank.
        """
        self._output, self._run, self._training, self._run_folder = output, run, training, run_folder
        self._size, self._fresh = size, fresh
        self._ask, self._progress = ask, progress
        self._leader, self._share = leader, share
        began = clock()
        self.budget = SnapshotTimeBudget(began, expected=seconds_to_write(size, output) if leader else 0.0)
        self._schedule = SnapshotSchedule(self.budget, clock, share)

    def take_if_due(self, tick: int) -> None:
        if self._schedule.due(tick) and self._share(self._has_room()):
            self._ask()

    def take(self, tick: int) -> None:
        """Do nothing: the client itself asks the trainer to save."""

    def ensure(self, tick: int) -> None:
        """Check that there is a checkpoint. A save that takes minutes cannot precede every risky change. Raises
        LookupError if there is none."""
        self._on_leader(lambda: self._choose(tick))

    def saved(self, folder: Path, tick: int, began: float, ended: float, *, own: bool) -> None:
        """Record that the trainer has saved a checkpoint. Called on every rank; rank 0 removes old ones."""
        self.budget.took(began, ended, own=own)
        self._schedule.note_snapshot(tick)
        record = checkpoint_record.read(folder)
        if record is not None:
            self._size = sum(record.files.values())
        if self._leader:
            self._tidy()

    def _tidy(self) -> None:
        """Remove the checkpoints for rollback except the newest KEPT, and those that a rollback made obsolete."""
        for_rollback = []
        for path in checkpoint_record.in_folder(self._output):
            if checkpoint_record.problem(path):
                continue
            record = checkpoint_record.read(path)
            is_ours = record is not None and (record.run, record.training) == (self._run, self._training)
            if record is not None and is_ours and record.own:
                for_rollback.append((not record.abandoned, record.tick, path))
        removed = sorted(for_rollback, reverse=True)[KEPT:] + [entry for entry in for_rollback if not entry[0]]
        for is_current, _, path in removed:
            log.debug("removes %s%s", path, "" if is_current else ", which a rollback left behind")
            shutil.rmtree(path, ignore_errors=True)

    def too_far(self, tick: int, now: int, *, exact: bool) -> str:
        """Accept any distance, because checkpoints are rare."""
        return ""

    def restore(self, tick: int, now: int) -> Snapshot:
        """Request the restart. This process trains no further step."""
        return self._on_leader(lambda: self._request_restart(tick))

    def undo(self) -> Snapshot:
        raise LookupError("what a rollback left is not kept on disk")

    def abandon(self, after_tick: int, now: int) -> None:
        """Mark checkpoints after that tick, because a rollback to a copy in memory has discarded their steps."""
        why = f"the run was rolled back from tick {now} to tick {after_tick}"
        try:
            if self._leader:
                checkpoint_record.abandon(self._output, self._run, self._training, after_tick, why)
        except OSError as error:
            log.warning("checkpoints of what was rolled back still count (%s)", error)

    def _request_restart(self, tick: int) -> Snapshot:
        chosen = self._choose(tick)
        reached, trained = self._progress()
        why = f"rolled back from step {reached} to step {chosen.step}: {chosen.restart}"
        target = {"checkpoint": chosen.state, "training": self._training, "step": chosen.step}
        relaunch.write(self._run_folder, Relaunch(**target, reached=reached, trained=trained, reason=why))
        checkpoint_record.abandon(self._output, self._run, self._training, chosen.tick, why)
        return chosen

    def _choose(self, tick: int) -> Snapshot:
        newest = checkpoint_record.newest(self._output, self._run, self._training, tick)
        if newest is not None:
            path, record = newest
            how = f"goes on from {path.name} in the next incarnation"
            return Snapshot(record.tick, record.step, str(path.absolute()), how)
        if self._fresh:
            return Snapshot(0, 0, relaunch.START, "begins anew in the next incarnation")
        raise LookupError(f"no complete checkpoint from tick {tick} or before in {self._output}")

    def _on_leader(self, look: Callable[[], Snapshot]) -> Snapshot:
        """Return rank 0's result on every rank. If rank 0 fails, every rank raises its error."""
        outcome: Snapshot | Exception | None
        try:
            outcome = look() if self._leader else None
        except Exception as error:
            outcome = error
        outcome = self._share(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def _has_room(self) -> bool:
        try:
            free = shutil.disk_usage(self._output).free
        except OSError as error:
            log.warning("no checkpoint for rollback: %s", error)
            return False
        if free < FREE_SIZES * self._size:
            sizes = free / 1e9, self._output, self._size / 1e9
            log.warning("no checkpoint for rollback: %.3g GB are free in %s, and one takes %.3g GB", *sizes)
            return False
        return True

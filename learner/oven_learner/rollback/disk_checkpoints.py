"""Rollback by restart, where a new process resumes from one of the trainer's own checkpoints."""

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
from oven_learner.rollback.memory_snapshots import SnapshotSchedule, SnapshotTimeBudget
from oven_learner.rollback.rollback_protocol import Snapshot
from oven_runs.home import relaunch
from oven_runs.home.relaunch import Relaunch

log = logging.getLogger("oven.learner")

PROBE_BYTES = 32 * 1024 * 1024
"""Maximum bytes of the test file that is written once at the start, to estimate the cost of the first save."""
MAX_CHECKPOINTS = 2
"""Maximum number of scheduled checkpoints. Checkpoints that a user or an agent requested are never removed."""
MIN_FREE_FACTOR = 1.5
"""Minimum free space for another checkpoint, as a multiple of the size of the last one."""


def seconds_to_write(size: int, folder: Path) -> float:
    """Estimate the seconds to write `size` bytes to the folder, from a test file. Return infinity if that fails."""
    probe_size = min(max(size, 1), PROBE_BYTES)
    file = folder / "oven.probe"
    chunk = os.urandom(min(probe_size, 1024 * 1024))
    began_at = time.monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as stream:
            for _ in range(0, probe_size, len(chunk)):
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        log.warning("checkpoints for rollback are disabled, because %s is not writable: %s", folder, error)
        return math.inf
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return (time.monotonic() - began_at) * size / probe_size


class DiskCheckpoints:
    """Checkpoints for rollback, which the trainer saves between two steps after a call of `request_save`. Scheduled
    checkpoints take at most `memory_snapshots.MAX_TIME_SHARE` of wall time."""

    can_undo = False
    """A rollback cannot be undone, because the state before it is not saved."""

    def __init__(
        self,
        output: Path,
        run: str,
        run_folder: Path,
        *,
        training: str,
        size: int,
        fresh: bool,
        request_save: Callable[[], object],
        progress: Callable[[], tuple[int, int]],
        leader: bool = True,
        clock: Callable[[], float] = time.monotonic,
        broadcast: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """Args:
        training: number of the training run in its script.
        size: approximate size of the first checkpoint, in bytes.
        fresh: whether the run started without a checkpoint, so that its script can start over.
        progress: function that returns the step and the number of gradient steps so far. They differ after rollbacks.
        leader: whether this is rank 0, which reads and writes.
        broadcast: function that returns rank 0's argument on every rank.
        """
        self._output, self._run, self._training, self._run_folder = output, run, training, run_folder
        self._size, self._fresh = size, fresh
        self._request_save, self._progress = request_save, progress
        self._leader, self._broadcast = leader, broadcast
        self.budget = SnapshotTimeBudget(clock(), expected_s=seconds_to_write(size, output) if leader else 0.0)
        self._schedule = SnapshotSchedule(self.budget, clock, broadcast)

    def take_if_due(self, tick: int) -> None:
        if self._schedule.is_due(tick) and self._broadcast(self._has_space()):
            self._request_save()

    def take(self, tick: int) -> None:
        """Do nothing, because the client requests the save from the trainer."""

    def ensure(self, tick: int) -> None:
        """Raise LookupError if there is no checkpoint. Do not save one, because this could take minutes."""
        self._run_on_leader(lambda: self._choose_state(tick))

    def on_saved(self, folder: Path, tick: int, began_at: float, ended_at: float, *, is_scheduled: bool) -> None:
        """Record that the trainer has saved a checkpoint. Called on every rank. Rank 0 removes old ones."""
        self.budget.charge(began_at, ended_at, is_scheduled=is_scheduled)
        self._schedule.on_snapshot(tick)
        record = checkpoint_record.read(folder)
        if record is not None:
            self._size = sum(record.files.values())
        if self._leader:
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove scheduled checkpoints that a rollback discarded, and all but the newest MAX_CHECKPOINTS."""
        valid: list[tuple[int, Path]] = []  # (tick, path)
        discarded: list[tuple[int, Path]] = []
        for path in checkpoint_record.all_checkpoints(self._output):
            if checkpoint_record.find_defect(path):
                continue
            record = checkpoint_record.read(path)
            if record is not None and record.own and (record.run, record.training) == (self._run, self._training):
                (discarded if record.abandoned else valid).append((record.tick, path))
        for _, path in [*discarded, *sorted(valid)[:-MAX_CHECKPOINTS]]:
            log.debug("removing the checkpoint %s", path)
            shutil.rmtree(path, ignore_errors=True)

    def distance_problem(self, tick: int, now: int, *, exact: bool) -> str:
        """Accept any distance, because checkpoints are rare."""
        return ""

    def restore(self, tick: int, now: int) -> Snapshot:
        """Request a restart from a checkpoint. This process then stops training."""
        return self._run_on_leader(lambda: self._request_restart(tick))

    def undo(self) -> Snapshot:
        """Raise LookupError, because the state before a rollback is not saved."""
        raise LookupError("a rollback on disk cannot be undone, because the state before it is not saved")

    def abandon(self, after_tick: int, now: int) -> None:
        """Mark the checkpoints after that tick, because a rollback in memory has discarded their steps."""
        reason = f"the run was rolled back from tick {now} to tick {after_tick}"
        try:
            if self._leader:
                checkpoint_record.abandon(self._output, self._run, self._training, after_tick, reason)
        except OSError as error:
            log.warning("checkpoints of discarded steps could not be marked and may still be used: %s", error)

    def _request_restart(self, tick: int) -> Snapshot:
        snapshot = self._choose_state(tick)
        step_reached, trained_steps = self._progress()
        reason = f"rolled back from step {step_reached} to step {snapshot.step}: {snapshot.restart_note}"
        target = {"checkpoint": snapshot.state, "training": self._training, "step": snapshot.step}
        rollback = Relaunch(**target, reached=step_reached, trained=trained_steps, reason=reason)
        relaunch.write(self._run_folder, rollback)
        checkpoint_record.abandon(self._output, self._run, self._training, snapshot.tick, reason)
        return snapshot

    def _choose_state(self, tick: int) -> Snapshot:
        """Choose the state for a restart: the newest checkpoint up to `tick`, or else the start of the script."""
        newest = checkpoint_record.find_newest(self._output, self._run, self._training, tick)
        if newest is not None:
            path, record = newest
            restart_note = f"continues from {path.name} in the next incarnation"
            return Snapshot(record.tick, record.step, str(path.absolute()), restart_note)
        if self._fresh:
            return Snapshot(0, 0, relaunch.START, "starts over in the next incarnation")
        raise LookupError(f"there is no complete checkpoint from tick {tick} or before in {self._output}")

    def _run_on_leader(self, function: Callable[[], Snapshot]) -> Snapshot:
        """Return rank 0's result on every rank. If rank 0 fails, every rank raises its error."""
        outcome: Snapshot | Exception | None
        try:
            outcome = function() if self._leader else None
        except Exception as error:
            outcome = error
        outcome = self._broadcast(outcome)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def _has_space(self) -> bool:
        try:
            free = shutil.disk_usage(self._output).free
        except OSError as error:
            log.warning("no checkpoint was saved for rollback: %s", error)
            return False
        if free < MIN_FREE_FACTOR * self._size:
            message = "no checkpoint was saved for rollback: %.3g GB are free in %s, but it needs %.3g GB"
            log.warning(message, free / 1e9, self._output, self._size / 1e9)
            return False
        return True

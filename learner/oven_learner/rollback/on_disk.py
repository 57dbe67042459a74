"""Rollback by restart: what is gone back to is a checkpoint of the trainer's own, in a new process."""

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
from oven_learner.rollback.in_memory import Snapshots
from oven_learner.rollback.kept_state import Snapshot
from oven_learner.rollback.snapshot_schedule import Schedule, SnapshotTimeBudget
from oven_runs.home import relaunch
from oven_runs.home.relaunch import Relaunch

log = logging.getLogger("oven.learner")

PROBE_BYTES = 32 * 1024 * 1024
"""Written once at the start, to know what the first save will cost on this disk, under this load."""
KEPT = 2
"""Of the checkpoints that were taken for rollback alone. What anybody asked for is never removed."""
ROOM = 1.5
"""So many times the last checkpoint's size has to be free before another is asked for."""


def seconds_to_write(size: int, folder: Path) -> float:
    """What `size` bytes would take there, by writing some. Where even that fails no save will come by itself."""
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
    """The trainer saves between two steps, when `ask` has said so. At most pacing.SHARE of wall time goes into saves
    that no one asked for."""

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
        share: Callable[[Any], Any] = lambda said: said,
    ) -> None:
        """`training`: which one of its script this is. `size`: bytes that the first checkpoint will have, about.
        `fresh`: the run began without a checkpoint, so that its script can begin anew. `progress`: (step, gradient
        steps so far). `leader`: this is rank 0, which looks and writes; `share` returns its argument on every rank."""
        self._output, self._run, self._training, self._run_folder = output, run, training, run_folder
        self._size, self._fresh = size, fresh
        self._ask, self._progress = ask, progress
        self._leader, self._share = leader, share
        began = clock()
        pacing = SnapshotTimeBudget(began, expected=seconds_to_write(size, output) if leader else 0.0)
        self._schedule = Schedule(pacing, clock, share)

    @property
    def spent_s(self) -> float:
        """What the saves that no one asked for have cost so far."""
        return self._schedule.pacing.spent

    @property
    def copies(self) -> int:
        """How many those were."""
        return self._schedule.pacing.copies

    def take_if_due(self, tick: int) -> None:
        if self._schedule.due(tick) and self._share(self._room()):
            self._ask()

    def take(self, tick: int) -> None:
        """The client itself asks the trainer to save."""

    def ensure(self, tick: int) -> None:
        """What is there has to do: a save that takes minutes cannot come before every risky change. Raises LookupError
        when nothing is."""
        self._share_or_raise(lambda: self._chosen(tick))

    def saved(self, folder: Path, tick: int, began: float, ended: float, *, own: bool) -> None:
        """Called on every rank; rank 0 removes what is no longer needed."""
        self._schedule.pacing.took(began, ended, own=own)
        self._schedule.taken(tick)
        record = checkpoint_record.read(folder)
        if record is not None:
            self._size = sum(record.files.values())
        if self._leader:
            self._tidy()

    def _tidy(self) -> None:
        """Remove all but the newest KEPT of those that no one asked for, and those that a rollback left behind."""
        taken = []
        for path in checkpoint_record.in_folder(self._output):
            if checkpoint_record.problem(path):
                continue
            record = checkpoint_record.read(path)
            mine = record is not None and (record.run, record.training) == (self._run, self._training)
            if record is not None and mine and record.own:
                taken.append((not record.abandoned, record.tick, path))
        for counts, _, path in sorted(taken, reverse=True)[KEPT:] + [one for one in taken if not one[0]]:
            log.debug("removes %s%s", path, "" if counts else ", which a rollback left behind")
            shutil.rmtree(path, ignore_errors=True)

    def restore(self, tick: int, now: int) -> Snapshot:
        """Ask for the restart. The present process trains no further step."""
        return self._share_or_raise(lambda: self._left(tick))

    def undo(self) -> Snapshot:
        raise LookupError("what a rollback left is not kept on disk")

    def abandon(self, after_tick: int, why: str) -> None:
        """A rollback elsewhere: what was saved after that tick stands for steps that no longer count."""
        if self._leader:
            checkpoint_record.abandon(self._output, self._run, self._training, after_tick, why)

    def _left(self, tick: int) -> Snapshot:
        chosen = self._chosen(tick)
        reached, trained = self._progress()
        why = f"rolled back from step {reached} to step {chosen.step}: {chosen.restart}"
        order = Relaunch(
            checkpoint=chosen.state,
            training=self._training,
            step=chosen.step,
            reached=reached,
            trained=trained,
            reason=why,
        )
        relaunch.write(self._run_folder, order)
        checkpoint_record.abandon(self._output, self._run, self._training, chosen.tick, why)
        return chosen

    def _chosen(self, tick: int) -> Snapshot:
        found = checkpoint_record.newest(self._output, self._run, self._training, tick)
        if found is not None:
            path, record = found
            said = f"goes on from {path.name} in the next incarnation"
            return Snapshot(record.tick, record.step, str(path.absolute()), said)
        if self._fresh:
            return Snapshot(0, 0, relaunch.START, "begins anew in the next incarnation")
        raise LookupError(f"no complete checkpoint from tick {tick} or before in {self._output}")

    def _share_or_raise(self, look: Callable[[], Snapshot]) -> Snapshot:
        """Rank 0 looks; its failure is every rank's."""
        said: Snapshot | Exception | None
        try:
            said = look() if self._leader else None
        except Exception as error:
            said = error
        said = self._share(said)
        if isinstance(said, Exception):
            raise said
        assert said is not None
        return said

    def _room(self) -> bool:
        try:
            free = shutil.disk_usage(self._output).free
        except OSError as error:
            log.warning("no checkpoint for rollback: %s", error)
            return False
        if free < ROOM * self._size:
            log.warning(
                "no checkpoint for rollback: %.3g GB are free in %s, and one takes %.3g GB",
                free / 1e9, self._output, self._size / 1e9,
            )  # fmt: skip
            return False
        return True


class Resumable:
    """Copies in memory to go back to; and checkpoints on disk, which a process that is killed leaves to the next one.
    Both keep to pacing.SHARE of wall time."""

    undoes = True

    def __init__(self, copies: Snapshots, disk: OnDisk) -> None:
        self.disk = disk
        self._copies = copies

    def take_if_due(self, tick: int) -> None:
        self._copies.take_if_due(tick)
        self.disk.take_if_due(tick)

    def take(self, tick: int) -> int:
        return self._copies.take(tick)

    def ensure(self, tick: int) -> None:
        self._copies.ensure(tick)

    def restore(self, tick: int, now: int) -> Snapshot:
        snapshot = self._copies.restore(tick, now)
        try:
            self.disk.abandon(snapshot.tick, f"the run was rolled back from tick {now} to tick {snapshot.tick}")
        except OSError as error:
            log.warning("checkpoints of what was rolled back still count (%s)", error)
        return snapshot

    def undo(self) -> Snapshot:
        return self._copies.undo()

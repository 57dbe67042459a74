"""The actions of a run that decisions can request: hold, stop, checkpoint, rollback, and undo of a rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from oven_core.protocol.actuators import CHECKPOINT, HOLD, ROLLBACK, STOP, UNDO
from oven_core.protocol.messages import Value
from oven_learner.actuators import Actuators, ChangeResult
from oven_learner.rollback.rollback_protocol import Rollback, Snapshot

NO_FILE = "a copy for run.rollback was taken; the client wrote no file, because only your script can save this model"
"""Reason in the receipt of `run.checkpoint` if the client cannot save a checkpoint."""


class Run(Protocol):
    """The run's position, and why the run holds, stops or restarts. Actions change these fields of `OvenClient`."""

    tick: int
    step: int
    hold_reason: str
    stop_reason: str
    restart_reason: str


class RunActions:
    """The actions `run.hold`, `run.stop`, `run.checkpoint`, `run.rollback` and `run.undo_rollback`."""

    def __init__(
        self, run: Run, actuators: Actuators, snapshots: Rollback | None, save: Callable[[], object] | None
    ) -> None:
        """`save` requests a checkpoint on disk. `snapshots` keeps copies for rollbacks."""
        self._run, self._actuators, self._snapshots, self._save = run, actuators, snapshots, save

    def register(self) -> None:
        """Register the available actions. A checkpoint needs `snapshots` or `save`. A rollback needs `snapshots`."""
        self._actuators.action(HOLD, self._hold, effect="ends_or_holds")
        self._actuators.action(STOP, self._stop, effect="ends_or_holds")
        if self._snapshots is not None or self._save is not None:
            unit = "step" if self._save is not None else "step of a copy for run.rollback"
            self._actuators.action(CHECKPOINT, self._checkpoint, unit=unit, effect="copies")
        if self._snapshots is not None:
            self._actuators.action(ROLLBACK, self._rollback, unit="tick to go back to", effect="moves_weights")
            if self._snapshots.can_undo:
                self._actuators.action(UNDO, self._undo, effect="moves_weights")

    def _hold(self, _: float | None) -> None:
        self._run.hold_reason = "a decision holds the run"

    def _stop(self, _: float | None) -> None:
        self._run.stop_reason = "a decision stops the run"

    def _checkpoint(self, _: float | None) -> ChangeResult:
        if self._snapshots is not None:
            self._snapshots.take(self._run.tick)
        if self._save is not None:
            self._save()
        return ChangeResult("applied", after=float(self._run.step), reason="" if self._save is not None else NO_FILE)

    def _rollback(self, tick: float | None) -> tuple[float, float]:
        assert self._snapshots is not None
        snapshots, now = self._snapshots, self._run.tick
        target_tick = now if tick is None else int(tick)
        if target_tick > now:
            raise LookupError(
                f"tick {target_tick} is in the future; give a tick from 0 to {now}, or no value for the newest snapshot"
            )
        return self._restore(lambda: snapshots.restore(target_tick, now))

    def _undo(self, _: float | None) -> tuple[float, float]:
        assert self._snapshots is not None
        return self._restore(self._snapshots.undo)

    def _restore(self, restore: Callable[[], Snapshot]) -> tuple[float, float]:
        """Restore a snapshot but keep the current settings. Return the step before and after."""
        run, step_before = self._run, self._run.step
        settings: dict[str, Value] = {
            spec.name: spec.value for spec in self._actuators.specs() if spec.kind != "action"
        }
        snapshot = restore()
        if snapshot.restart_note:
            restart_reason = f"rolled back from step {step_before} to step {snapshot.step}: {snapshot.restart_note}"
            run.restart_reason = run.stop_reason = restart_reason
            settings = {}  # the restarted process reads them from the log
        for name, value in settings.items():  # the snapshot has overwritten some, such as the weight decay
            self._actuators.apply(name, value)
        for proof in self._actuators.proofs.values():
            proof.on_restore()
        run.step = snapshot.step
        return float(step_before), float(snapshot.step)

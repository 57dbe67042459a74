"""What a run itself can be told by a decision: to hold, stop, keep a snapshot, roll back, and undo that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from oven_core.protocol.actuator_names import CHECKPOINT, HOLD, ROLLBACK, STOP, UNDO
from oven_core.protocol.messages import Value
from oven_learner.actuators import Actuators
from oven_learner.rollback.kept_state import Rollback, Snapshot


class Run(Protocol):
    """Where the run is, as `OvenClient` says it. A decision that is carried out may change it."""

    tick: int
    step: int
    held: str
    stopping: str
    restart: str


class RunActions:
    """The actions `run.hold`, `run.stop`, `run.checkpoint`, `run.rollback` and `run.undo_rollback`."""

    def __init__(
        self, run: Run, actuators: Actuators, snapshots: Rollback | None, save: Callable[[], object] | None
    ) -> None:
        """Adds to the actuators those that can be done: with `snapshots` or `save` a checkpoint, with `snapshots`
        rollbacks."""
        self._run, self._actuators, self._snapshots, self._save = run, actuators, snapshots, save
        actuators.action(HOLD, self._hold, effect="ends_or_holds")
        actuators.action(STOP, self._stop, effect="ends_or_holds")
        if snapshots is not None or save is not None:
            actuators.action(CHECKPOINT, self._checkpoint, unit="step", effect="copies")
        if snapshots is not None:
            actuators.action(ROLLBACK, self._rollback, unit="tick to go back to", effect="moves_weights")
            if snapshots.undoes:
                actuators.action(UNDO, self._undo, effect="moves_weights")

    def _hold(self, _: float | None) -> None:
        self._run.held = "a decision holds the run"

    def _stop(self, _: float | None) -> None:
        self._run.stopping = "a decision stops the run"

    def _checkpoint(self, _: float | None) -> float:
        if self._snapshots is not None:
            self._snapshots.take(self._run.tick)
        if self._save is not None:
            self._save()
        return float(self._run.step)

    def _rollback(self, tick: float | None) -> Any:
        assert self._snapshots is not None
        now, snapshots = self._run.tick, self._snapshots
        to = now if tick is None else int(tick)
        if to > now:
            raise LookupError(
                f"tick {to} is ahead: this run is at tick {now}; give a tick from 0 to {now}, or no value for the "
                "newest snapshot"
            )
        return self._restore(lambda: snapshots.restore(to, now))

    def _undo(self, _: float | None) -> Any:
        assert self._snapshots is not None
        return self._restore(self._snapshots.undo)

    def _restore(self, restored: Callable[[], Snapshot]) -> Any:
        """Steps before and after."""
        run, before = self._run, self._run.step
        settings: dict[str, Value] = {
            spec.name: spec.value for spec in self._actuators.specs() if spec.kind != "action"
        }
        snapshot = restored()
        if snapshot.restart:
            run.restart = run.stopping = f"rolled back from step {before} to step {snapshot.step}: {snapshot.restart}"
            settings = {}  # the next process takes them from the log
        for name, value in settings.items():  # e.g. a weight decay lives in the optimizer's state
            self._actuators.apply(name, value)
        for proof in self._actuators.proofs().values():
            proof.moved()
        run.step = snapshot.step
        return float(before), float(snapshot.step)

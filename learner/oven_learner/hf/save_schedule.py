"""When an attached trainer saves beside its own strategy, and what a checkpoint's record says."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import TrainerControl, TrainerState

from oven_learner.client.client import OvenClient
from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.hf.step_hooks import StepHook
from oven_learner.rollback.checkpoint_record import Record
from oven_learner.rollback.kept_state import Rollback
from oven_learner.rollback.on_disk import OnDisk, Resumable


@dataclass(slots=True)
class StepBudget:
    """The gradient steps of one training, and how many it may make."""

    limit: int | None
    """None: no end by steps."""
    charge_rollbacks: bool
    """Whether steps that rollbacks threw away count."""
    trained_before: int
    """Gradient steps before this training."""
    step_before: int
    trained: int = 0
    """Gradient steps of this training, those that rollbacks threw away included."""

    @property
    def total(self) -> int:
        """Gradient steps of the run so far."""
        return self.trained_before + self.trained

    def spent(self, step: int) -> bool:
        """Whether `step` is the last. Rollbacks cost no steps at the end, unless they are charged."""
        steps = self.trained if self.charge_rollbacks else step
        return self.limit is not None and steps >= self.limit

    def thrown_away(self, step: int) -> int:
        """Gradient steps of this training that its rollbacks in place threw away."""
        return self.trained - (step - self.step_before)


class SaveSchedule(StepHook):
    """Has the trainer save when somebody asks, when the run stops, and for rollback."""

    def __init__(self, checkpoints: TrainerCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._asked = self._asked_own = self._saves_own = False

    def ask(self) -> None:
        """Somebody wants a checkpoint after this step."""
        self._asked = True

    def ask_own(self) -> None:
        """A checkpoint for rollback is due after this step."""
        self._asked_own = True

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if client.restart:
            control.should_save = False  # what it goes back from is not to be gone on from
        elif self._asked or (client.stopping and not client.out_of_time):
            control.should_save = True
        elif self._asked_own and not control.should_save:
            control.should_save = self._saves_own = True
        self._asked = self._asked_own = False

    def saved(self, state: TrainerState, client: OvenClient, budget: StepBudget, rollback: Rollback | None) -> None:
        """The trainer has written a checkpoint: add its record. A collective."""
        own, self._saves_own = self._saves_own, False
        saved = self._checkpoints.saved(
            state.global_step,
            lambda: Record(
                **client.position(),
                run="",
                training="",
                step=state.global_step,
                trained=budget.total,
                fresh=False,
                own=own,
                world=1,
                actuators={spec.name: spec.value for spec in client.actuators.specs() if spec.kind != "action"},
                inexact=self._checkpoints.inexact(budget.thrown_away(state.global_step)),
            ),
        )
        disk = rollback.disk if isinstance(rollback, Resumable) else rollback
        if saved is not None and isinstance(disk, OnDisk):
            folder, began, ended = saved
            disk.saved(folder, client.tick, began, ended, own=own)

"""Controls how long an attached trainer trains, with a step budget and additional epochs after rollbacks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from oven_learner import trainer_internals


class EpochExtension:
    """Extends training with additional epochs after rollbacks. transformers computes the number of epochs before
    training, and stops after that many epochs, even if rollbacks have discarded steps. With this extension, training
    continues until it has reached its number of steps."""

    def __init__(self, trainer: Trainer) -> None:
        self._planned_epochs: int | None = None
        """The trainer's own number of epochs, or None if it cannot be extended."""
        self._epochs_done = self._epochs_before = self._steps_per_epoch = 0
        self.resume_path: Path | None = None
        """The checkpoint that training is about to resume from."""
        if trainer_internals.EPOCHS.works_on(trainer):
            trainer_internals.wrap(trainer, trainer_internals.PLAN_EPOCHS, self._plan_more_epochs)

    def _plan_more_epochs(self, compute_values: Callable[..., Any]) -> Callable[..., Any]:
        def compute_extended_values(*args: Any, **kwargs: Any) -> Any:
            epochs, steps_per_epoch, *other_values, max_steps = compute_values(*args, **kwargs)
            self._planned_epochs, self._steps_per_epoch = epochs, steps_per_epoch
            is_over = self._resume_step() >= max_steps  # with more epochs, the trainer would train one more step
            max_epochs = epochs if is_over else sys.maxsize
            return (max_epochs, steps_per_epoch, *other_values, max_steps)

        return compute_extended_values

    def begin(self, state: TrainerState) -> None:
        """Restore the trainer's own number of epochs in its state, for other callbacks. Called when training begins."""
        self._epochs_done = 0
        if self._planned_epochs is not None:
            state.num_train_epochs = self._planned_epochs
            self._epochs_before = state.global_step // self._steps_per_epoch

    def end_epoch(self) -> bool:
        """Count an epoch at its end. Return whether it was the last planned epoch, or a later one."""
        self._epochs_done += 1
        return self._planned_epochs is not None and self._epochs_before + self._epochs_done >= self._planned_epochs

    def _resume_step(self) -> int:
        file = self.resume_path / TRAINER_STATE_NAME if self.resume_path is not None else None
        return TrainerState.load_from_json(str(file)).global_step if file is not None and file.is_file() else 0


@dataclass(slots=True)
class StepBudget:
    """The number of gradient steps of one training run, and its limit."""

    limit: int | None
    """Maximum number of steps, or None if there is no limit."""
    charge_rollbacks: bool
    """Whether steps that rollbacks threw away count against the limit."""
    steps_before: int
    """Number of gradient steps before this training run, including those that rollbacks threw away."""
    first_step: int
    """The trainer's step when this training run began."""
    trained_steps: int = 0
    """Number of gradient steps of this training run, including those that rollbacks threw away."""

    @property
    def total(self) -> int:
        return self.steps_before + self.trained_steps

    def is_used_up(self, step: int) -> bool:
        """Whether `step` is the last one. Steps that rollbacks threw away are repeated, unless they are charged."""
        steps = self.trained_steps if self.charge_rollbacks else step
        return self.limit is not None and steps >= self.limit

    def discarded_steps(self, step: int) -> int:
        """Return the number of gradient steps of this training run that rollbacks in place threw away."""
        return self.trained_steps - (step - self.first_step)

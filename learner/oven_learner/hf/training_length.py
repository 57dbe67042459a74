"""Controls the length of an attached training: its step budget, and extra epochs after rollbacks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME


class EpochExtension:
    """Lets training run more epochs after rollbacks.

    transformers 5.23 computes the number of epochs before training, and ends after that number at any step. With
    this extension, training continues if a rollback has discarded steps.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._planned: int | None = None
        """The trainer's own number of epochs; None if it cannot be extended."""
        self._epochs_done = self._epochs_before = self._steps_per_epoch = 0
        self.resumed: Path | None = None
        """The checkpoint that training is about to resume from."""
        values = getattr(trainer, "set_initial_training_values", None)
        if values is None:
            return

        def extended(*args: Any, **kwargs: Any) -> Any:
            planned, steps_per_epoch, *further, max_steps = values(*args, **kwargs)
            self._planned, self._steps_per_epoch = planned, steps_per_epoch
            is_over = self._resumed_step() >= max_steps  # or it would train a step too many
            return (planned if is_over else sys.maxsize, steps_per_epoch, *further, max_steps)

        trainer.set_initial_training_values = extended  # type: ignore[method-assign]

    def begin(self, state: TrainerState) -> None:
        """Restore the trainer's own number of epochs for readers of its state. Called when training begins."""
        self._epochs_done = 0
        if self._planned is not None:
            state.num_train_epochs = self._planned
            self._epochs_before = state.global_step // self._steps_per_epoch

    def over(self) -> bool:
        """Whether the last planned epoch has ended. Called at the end of each epoch."""
        self._epochs_done += 1
        return self._planned is not None and self._epochs_before + self._epochs_done >= self._planned

    def _resumed_step(self) -> int:
        file = self.resumed / TRAINER_STATE_NAME if self.resumed is not None else None
        return TrainerState.load_from_json(str(file)).global_step if file is not None and file.is_file() else 0


@dataclass(slots=True)
class StepBudget:
    """Counts the gradient steps of one training and limits them."""

    limit: int | None
    """The maximum number of steps; None for no limit."""
    charge_rollbacks: bool
    """Whether steps that rollbacks threw away count against the limit."""
    trained_before: int
    """Gradient steps before this training."""
    step_before: int
    trained: int = 0
    """Gradient steps of this training, including those that rollbacks threw away."""

    @property
    def total(self) -> int:
        return self.trained_before + self.trained

    def spent(self, step: int) -> bool:
        """Whether `step` is the last. Steps that rollbacks threw away are trained again, unless they are charged."""
        steps = self.trained if self.charge_rollbacks else step
        return self.limit is not None and steps >= self.limit

    def thrown_away(self, step: int) -> int:
        """Return the gradient steps of this training that rollbacks in place threw away."""
        return self.trained - (step - self.step_before)

"""How long an attached trainer trains: its budget of steps, and the epochs that rollbacks make it need."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME


class EpochExtension:
    """transformers 5.23 works out the number of epochs before it begins, and ends after so many, whatever step it has
    reached. This one ends it there too, unless steps were thrown away."""

    def __init__(self, trainer: Trainer) -> None:
        self._planned: int | None = None
        """None where the trainer runs as many as it is told to."""
        self._done = self._before = self._in_one = 0
        self.resumed: Path | None = None
        """The checkpoint that training is about to continue from."""
        values = getattr(trainer, "set_initial_training_values", None)
        if values is None:
            return

        def extended(*args: Any, **kwargs: Any) -> Any:
            planned, in_one, *others, max_steps = values(*args, **kwargs)
            self._planned, self._in_one = planned, in_one
            over = self._step() >= max_steps  # it would train a step too many
            return (planned if over else sys.maxsize, in_one, *others, max_steps)

        trainer.set_initial_training_values = extended  # type: ignore[method-assign]

    def begin(self, state: TrainerState) -> None:
        """Training begins: what others read is the trainer's own number."""
        self._done = 0
        if self._planned is not None:
            state.num_train_epochs = self._planned
            self._before = state.global_step // self._in_one

    def over(self) -> bool:
        """Called at the end of each epoch: whether it was the last that the trainer had in mind."""
        self._done += 1
        return self._planned is not None and self._before + self._done >= self._planned

    def _step(self) -> int:
        file = self.resumed / TRAINER_STATE_NAME if self.resumed is not None else None
        return TrainerState.load_from_json(str(file)).global_step if file is not None and file.is_file() else 0


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

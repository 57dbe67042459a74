"""The learning rate as a multiplier on the user's own schedule.

Setting a parameter group's `lr` lasts one step, since the scheduler writes it again. Scaling the scheduler's base rates
survives its next step, and checkpoints.
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer


class LearningRateScale:
    """Reads and writes the scale; made once optimizer and scheduler exist."""

    def __init__(self, trainer: Trainer) -> None:
        self._optimizer: Any = trainer.optimizer
        scheduler: Any = trainer.lr_scheduler
        self._scheduler: Any = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
        base = getattr(self._scheduler, "base_lrs", None)
        # After a resume the scheduler brings scaled base rates back: the user's own are what the arguments say.
        resumed = base is not None and trainer.state.global_step > 0
        self._user = [trainer.args.learning_rate for _ in base] if base and resumed else base and list(base)
        self._scale = 1.0

    def read(self) -> float:
        if self._user:
            return float(self._scheduler.base_lrs[0] / self._user[0])
        return self._scale

    def write(self, scale: float) -> None:
        change = scale / self.read()
        for index, group in enumerate(self._optimizer.param_groups):
            group["lr"] *= change
            if self._user:
                self._scheduler.base_lrs[index] = self._user[index] * scale
                group["initial_lr"] = self._user[index] * scale
        if self._user:
            self._scheduler._last_lr = [group["lr"] for group in self._optimizer.param_groups]
        self._scale = scale

    def now(self) -> float:
        """The rate that the next optimizer step uses."""
        return float(self._optimizer.param_groups[0]["lr"])

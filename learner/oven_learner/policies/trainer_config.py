"""The configuration of PolicyTrainer, with the names and defaults of TRL 1.16's GRPOConfig where they exist."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from oven_core.errors import ConfigError
from oven_learner.optim.lr_scale import USER_BOUNDS

LOSS_TYPES = ("dapo", "grpo")


@dataclass(frozen=True, kw_only=True)
class PolicyTrainerConfig:
    """Settings of a PolicyTrainer. Raises ConfigError for invalid values."""

    max_steps: int
    """Updates of the weights."""
    group_size: int = 8
    """Samples per condition."""
    conditions_per_step: int = 4
    learning_rate: float = 1e-6
    """Constant learning rate of AdamW. Ignored if the trainer receives an `optimizer`."""
    beta: float = 0.0
    """Weight of the KL term."""
    epsilon: float = 0.2
    epsilon_high: float | None = None
    """None: same as `epsilon`."""
    loss_type: Literal["dapo", "grpo"] = "dapo"
    """dapo: mean over all steps of the batch. grpo: mean over each sample's steps, then over samples."""
    updates_per_batch: int = 1
    """TRL's num_iterations: updates per batch of samples."""
    rows_per_pass: int | None = None
    """Samples scored per pass, to save memory. None: all."""
    max_grad_norm: float | None = 1.0
    seed: int = 0
    """Seed of each batch's samples and of the conditions' order."""
    hold_after: int = 10
    """Consecutive steps without a scored group after which the run is held. A committee has its own value."""
    lr_bounds: tuple[float, float] = USER_BOUNDS
    beta_bounds: tuple[float, float] = USER_BOUNDS
    save_steps: int = 0
    """Steps between checkpoints in `output_dir`. 0: only one at the end."""

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"group_size={self.group_size}: an advantage compares samples; give 2 or more")
        for name in ("max_steps", "conditions_per_step", "updates_per_batch", "hold_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: give 1 or more")
        if self.rows_per_pass is not None and self.rows_per_pass < 1:
            raise ConfigError(f"rows_per_pass={self.rows_per_pass}: give 1 or more, or omit it")
        if self.loss_type not in LOSS_TYPES:
            raise ConfigError(f"loss_type={self.loss_type!r} is unknown; choose from {', '.join(LOSS_TYPES)}")
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise ConfigError(f"beta={self.beta:g}: give a finite number, 0 or more")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate={self.learning_rate:g}: give a finite number above 0")
        if not 0 < self.epsilon <= 1 or (self.epsilon_high is not None and self.epsilon_high <= 0):
            raise ConfigError(
                f"epsilon={self.epsilon:g}, epsilon_high={self.epsilon_high}: give 0 < epsilon <= 1, and more than 0"
            )

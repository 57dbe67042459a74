"""Every knob of the recipe in one frozen model, and its starts. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_learner.environments.small_functions import SHAPES
from oven_learner.recipes.base import no_such_start

TUNED_LEARNING_RATE = 2e-4
"""Adam's step size."""


class RepairSettings(BaseModel):
    """Sizes of the tasks, the policy, its warm-up and GRPO; the learning rate comes from a `Start`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shapes: tuple[str, ...] = Field(default=tuple(shape.name for shape in SHAPES), min_length=1)
    train_tasks: int = Field(default=2000, ge=1, description="pool of training tasks")
    eval_tasks: int = Field(default=64, ge=1, description="unseen tasks that are evaluated on")

    # The policy: a Llama.
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    ffn: int = 384

    # The warm-up on demonstrations, in rounds, until the policy solves a share of unseen tasks.
    demonstrations: int = Field(default=6000, ge=1, description="different demonstrations")
    sft_batch: int = Field(default=32, ge=1)
    sft_learning_rate: float = Field(default=3e-3, gt=0)
    sft_steps: int = Field(default=600, ge=1, description="most steps of the warm-up")
    right_habit: float = Field(default=0.5, ge=0, le=1, description="share of demonstrated edits that are right")

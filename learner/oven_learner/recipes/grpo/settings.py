"""Every knob of the recipe in one frozen model. Importing it needs no torch."""

from typing import Literal

from pydantic import Field

from oven_learner.recipes.sorting import SortingSettings

TUNED_LEARNING_RATE = 2e-4
"""Adam's step size at which this policy ended best of those tried over 120 steps."""


class GrpoSettings(SortingSettings):
    """Sizes and optimiser knobs; the learning rate and the mixture come from a `Start` instead."""

    max_steps: int = Field(default=120, ge=1, le=10**9)
    prompts_per_step: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=2, description="completions per prompt; 2 is the least with an advantage")
    beta: float = Field(default=0.0, ge=0, description="weight of the KL term; the warm-up policy is the first teacher")
    max_grad_norm: float = Field(default=1.0, gt=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    lr_warmup_steps: int = Field(default=0, ge=0, description="steps over which the learning rate rises from 0")
    eval_every: int = Field(default=20, ge=1, description="steps between held-out evaluations")

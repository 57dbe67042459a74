"""Every knob of the recipe in one frozen model. Importing it needs no torch."""

from pydantic import Field

from oven_learner.recipes.sorting import SortingSettings

TUNED_LEARNING_RATE = 1e-3
"""Adam's step size at which this policy ended best of those tried over 30 steps."""


class DistillationSettings(SortingSettings):
    """Sizes and optimiser knobs; the learning rate and the first teacher come from a `Start` instead."""

    max_steps: int = Field(default=30, ge=1, le=10**9)
    prompts_per_step: int = Field(default=256, ge=1, description="each answered once")
    divergence: float = Field(
        default=1.0, ge=0, le=1, description="generalized Jensen-Shannon: 0 forward KL, 1 reverse KL"
    )
    temperature: float = Field(default=1.0, gt=0, description="of sampling, and of both distributions in the loss")
    max_grad_norm: float = Field(default=1.0, gt=0)
    eval_every: int = Field(default=10, ge=1, description="steps between held-out evaluations")

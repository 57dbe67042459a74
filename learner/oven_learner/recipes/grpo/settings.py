"""Every knob of the recipe in one frozen model. Importing it needs no torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TUNED_LEARNING_RATE = 2e-4
"""Adam's step size at which this policy ended best of those tried over 120 steps."""


class GrpoSettings(BaseModel):
    """Sizes and optimiser knobs; the learning rate and the mixture come from a `Start` instead."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The task: a level is the number of digits to sort.
    lengths: tuple[int, ...] = Field(default=(3, 4, 5), min_length=1)
    train_prompts: int = Field(default=2000, ge=1, description="pool of training prompts per level")
    eval_prompts: int = Field(default=128, ge=1, description="held-out prompts per level")

    # The policy: a Llama of about 0.5 M parameters.
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    ffn: int = 512

    # The supervised warm-up on mixed habits, which stands in for pre-training.
    sft_steps: int = Field(default=300, ge=0)
    sft_batch: int = Field(default=64, ge=1)
    sft_learning_rate: float = Field(default=2e-3, gt=0)
    right_habit: float = Field(default=0.47, ge=0, le=1, description="share of warm-up targets that are correct")

    # GRPO.
    max_steps: int = Field(default=120, ge=1)
    prompts_per_step: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=2, description="completions per prompt; 2 is the least with an advantage")
    beta: float = Field(default=0.0, ge=0, description="weight of the KL term; the warm-up policy is the first teacher")
    max_grad_norm: float = Field(default=1.0, gt=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    lr_warmup_steps: int = Field(default=0, ge=0, description="steps over which the learning rate rises from 0")
    eval_every: int = Field(default=20, ge=1, description="steps between held-out evaluations")

    @property
    def levels(self) -> tuple[str, ...]:
        """Level names, easiest first: `("len3", ...)`."""
        return tuple(f"len{length}" for length in sorted(self.lengths))

    @property
    def max_completion_length(self) -> int:
        """The longest answer, its end-of-sequence token, and one token of room to be wrong by."""
        return max(self.lengths) + 2

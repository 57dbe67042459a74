"""Settings that the recipes on the sorting task share: sizes of task, policy and warm-up, and metrics. No torch."""

from collections.abc import Sequence

from pydantic import Field

from oven_core.protocol.messages import MetricSpec
from oven_recipes.base import RecipeSettings

LR_BOUNDS = (0.01, 100.0)
"""Wide enough that an agent cannot infer from them where a drawn start lies."""


def accuracies(levels: Sequence[str]) -> tuple[MetricSpec, ...]:
    """Return the held-out accuracy, 0 to 1: the mean over levels, and that of each level."""
    return (
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0, unit="greedy, mean over levels"),
        *(MetricSpec(name=f"eval/accuracy/{n}", better="up", held_out=True, ceiling=1.0) for n in levels),
    )


class SortingSettings(RecipeSettings):
    """Sizes of the task, the policy and its warm-up."""

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

    @property
    def levels(self) -> tuple[str, ...]:
        """Level names, easiest first: `("len3", ...)`."""
        return tuple(f"len{length}" for length in sorted(self.lengths))

    @property
    def max_completion_length(self) -> int:
        """The longest answer, its end-of-sequence token, and one more token, so that an answer can be too long."""
        return max(self.lengths) + 2

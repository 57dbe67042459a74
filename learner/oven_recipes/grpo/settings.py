"""The settings of the sorting recipes, and the named starts of `grpo`. This module does not import torch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from oven_core.protocol.messages import MetricSpec
from oven_recipes import recipe_interface
from oven_recipes.recipe_interface import RecipeSettings


def accuracy_specs(levels: Sequence[str]) -> tuple[MetricSpec, ...]:
    """Return the specs of the held-out accuracy: the mean over all levels, and one metric per level."""
    return (
        MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0),
        *(MetricSpec(name=f"eval/accuracy/{level}", better="up", held_out=True, ceiling=1.0) for level in levels),
    )


class SortingSettings(RecipeSettings):
    """Settings of the task, the policy and its warm-up. The recipes `grpo` and `distillation` share them."""

    # The task: a level is the number of digits to sort.
    lengths: tuple[int, ...] = Field(default=(3, 4, 5), min_length=1)
    train_prompts: int = Field(default=2000, ge=1, description="pool of training prompts per level")
    eval_prompts: int = Field(default=128, ge=1, description="held-out prompts per level")

    # The policy: a Llama of about 0.5 M parameters.
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    ffn: int = 512

    # The supervised warm-up, which replaces pre-training. Its targets are correct, or follow `sorting_task.HABITS`.
    sft_steps: int = Field(default=300, ge=0)
    sft_batch: int = Field(default=64, ge=1)
    sft_learning_rate: float = Field(default=2e-3, gt=0)
    correct_share: float = Field(default=0.47, ge=0, le=1, description="share of warm-up targets that are correct")

    @property
    def levels(self) -> tuple[str, ...]:
        """The level names, easiest first: `("len3", ...)`."""
        return tuple(f"len{length}" for length in sorted(self.lengths))

    @property
    def max_completion_length(self) -> int:
        """Maximum number of tokens of a completion. It is one more than the longest correct answer and its end token
        need, so that an answer can also be too long."""
        return max(self.lengths) + 2


TUNED_LEARNING_RATE = 2e-4
"""The best of the learning rates that were tried with Adam on this policy over 120 steps."""


class GrpoSettings(SortingSettings):
    """All settings of the recipe `grpo`, except the learning rate and the mixture, which come from a `Start`."""

    max_steps: int = Field(default=120, ge=1, le=10**9)
    prompts_per_step: int = Field(default=32, ge=1)
    group_size: int = Field(default=8, ge=2, description="completions per prompt; an advantage needs at least 2")
    beta: float = Field(default=0.0, ge=0, description="weight of the KL term; the warm-up policy is the first teacher")
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    lr_warmup_steps: int = Field(default=0, ge=0, description="steps over which the learning rate rises from 0")
    eval_every: int = Field(default=4, ge=1, description="steps between held-out evaluations")


LEARNING_RATE_RANGE = (1 / 30, 10.0)
"""Range from which the start `drawn` draws a learning rate, as multiples of the tuned one. The draw is log-uniform."""
MIXTURE_CONCENTRATION = 0.5
"""Dirichlet concentration of the mixture that `drawn` draws. Below 1, most mixtures contain little of some level."""
GAMED_WEIGHT = 0.75
"""Weight of the reward function that a policy can exploit, in the starts that stage it. `exact` has the rest."""
TOUR_BETA = 0.6
"""Weight of the KL term in the tour."""
STARTS = recipe_interface.LR_STARTS | {
    "tour": "a learning rate of 1/10, only the easiest level, a weak teacher, and a reward rule that can be gamed",
    "drawn": "the seed draws the learning rate and the mixture",
    "drill:easy-only": "only the easiest level is in the data",
    "drill:weak-teacher": "a KL term with beta 1 keeps the policy close to a teacher with an eighth as many parameters",
    "drill:gamed-rule": f"{GAMED_WEIGHT:.0%} of the reward is a rule that any repeated digit satisfies; "
    "a KL term of 0.3 slows the policy",
}
"""The names of the starts, and what is wrong with each."""
TeacherName = Literal["initial", "small", "strong"]
"""Names of teachers. `sorting_policy.TEACHER_SETTINGS` describes each."""


@dataclass(frozen=True)
class Start(recipe_interface.Start):
    """A learning rate, and the share of each level in the data. `beta` overrides the setting `beta`, the weight of the
    KL term. If the weight is above 0, `teacher` is the KL term's teacher at the start of the training."""

    mixture: dict[str, float] = field(default_factory=dict)
    beta: float | None = None
    teacher: TeacherName = "initial"
    gamed_weight: float = 0.0
    """Weight of the reward function `smooth`, which can be gamed. At 0, the committee does not have it."""

    def describe(self) -> str:
        shares = " ".join(f"{level} {weight:.0%}" for level, weight in self.mixture.items())
        kl_term = f", KL term with beta {self.beta:g} and the {self.teacher} teacher" if self.beta else ""
        gamed = f", {self.gamed_weight:.0%} of the reward from the rule smooth" if self.gamed_weight else ""
        return f"{super().describe()}, mixture {shares}{kl_term}{gamed}"


def parse_start(text: str, seed: int, settings: GrpoSettings) -> Start:
    """Return the start named `text`. Raises ValueError, which lists similar names, for an unknown name."""
    levels = settings.levels
    even = {level: 1 / len(levels) for level in levels}
    easy = {level: float(level == levels[0]) for level in levels}
    match text:
        case "tuned" | "drill:lr-low" | "drill:lr-high":
            return Start(*recipe_interface.learning_rate_start(text, TUNED_LEARNING_RATE), even)
        case "drawn":
            return _draw_start(seed, levels)
        case "drill:easy-only":
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], easy)
        case "drill:weak-teacher":
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], even, beta=1.0, teacher="small")
        case "drill:gamed-rule":
            # Without a KL term, the policy would lose every correct answer before any agent could see it.
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], even, beta=0.3, gamed_weight=GAMED_WEIGHT)
        case "tour":
            return Start(
                text, TUNED_LEARNING_RATE / 10, STARTS[text], easy, beta=TOUR_BETA, teacher="small",
                gamed_weight=GAMED_WEIGHT,
            )  # fmt: skip
    raise recipe_interface.no_such_start(text, STARTS)


def _draw_start(seed: int, levels: Sequence[str]) -> Start:
    rng = random.Random(f"start {seed}")
    low, high = LEARNING_RATE_RANGE
    factor = math.exp(rng.uniform(math.log(low), math.log(high)))
    # A Dirichlet sample is gamma samples divided by their sum. The minimum keeps the sum positive if all underflow.
    gammas = {level: max(rng.gammavariate(MIXTURE_CONCENTRATION, 1.0), 1e-12) for level in levels}
    mixture = {level: gamma / sum(gammas.values()) for level, gamma in gammas.items()}
    return Start("drawn", TUNED_LEARNING_RATE * factor, mixture=mixture)

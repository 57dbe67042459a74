"""The settings and named starts of the recipe `motion`. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from oven_recipes import recipe_interface

TUNED_LEARNING_RATE = 1e-3
"""Adam's learning rate for both kinds of policy. At 3e-3, the Gaussian policy reached a lower held-out reward (0.51
and 0.49 with seeds 1 and 2, instead of 0.59 and 0.54)."""
DEFAULT_STEPS = {"gaussian": 120, "diffusion": 60}
"""Default number of training steps. Diffusion has fewer, because a step takes ten times as long."""
TeacherName = Literal["small", "strong"]
STARTS = {name: recipe_interface.LR_STARTS[name] for name in ("tuned", "drill:lr-low")} | {
    "drill:weak-teacher": "a KL term with beta 1 keeps the policy close to a teacher of half its width with the same "
    "warm-up"
}
"""The names of the starts, and what is wrong with each."""


class MotionSettings(recipe_interface.RecipeSettings):
    """Settings of the policy, its warm-up and GRPO. The learning rate and the first teacher come from a `Start`."""

    policy: Literal["gaussian", "diffusion"] = Field(
        default="gaussian", description="kind of the policy and both teachers; diffusion requires the `diffusion` extra"
    )
    frames: int = Field(default=32, ge=8, multiple_of=4)
    hidden: int = Field(default=128, ge=8, description="width of the policy; the small teacher is half as wide")
    denoising_steps: int = Field(default=5, ge=2, description="denoising steps per sample of a diffusion policy")
    embedding: Literal["auto", "minilm", "words"] = Field(
        default="auto",
        description="how intents are encoded: minilm (a sentence encoder; requires the `motion` extra) or words (a "
        "vector per word); auto: minilm if it is installed",
    )

    warm_steps: int = Field(default=300, ge=0, description="supervised steps on generated clips before GRPO")
    warm_batch: int = Field(default=32, ge=1)
    warm_learning_rate: float = Field(default=1e-2, gt=0)
    warm_reach: tuple[float, float] = Field(
        default=(0.1, 0.6), description="range from which each warm-up clip's reach is drawn; 1 is full reach"
    )

    max_steps: int | None = Field(default=None, ge=1, le=10**9, description="default: 120; diffusion: 60")
    intents_per_step: int = Field(default=8, ge=1)
    group_size: int = Field(default=12, ge=2)
    updates_per_batch: int = Field(default=1, ge=1)
    beta: float = Field(default=0.01, ge=0, description="weight of the KL term to the active teacher")
    eval_every: int = Field(default=10, ge=1, description="steps between held-out evaluations")
    save_every: int = Field(default=20, ge=0, description="steps between checkpoints; 0: at the end only")

    @property
    def steps(self) -> int:
        """Number of training steps of the policy."""
        return self.max_steps or DEFAULT_STEPS[self.policy]


@dataclass(frozen=True)
class Start(recipe_interface.Start):
    """A learning rate, the teacher at the start of training, and optionally a KL weight that overrides the setting."""

    teacher: TeacherName = "strong"
    beta: float | None = None

    def describe(self) -> str:
        return f"{super().describe()}, KL term with the {self.teacher} teacher"


def parse_start(text: str) -> Start:
    """Return the start named `text`. Raises ValueError, which lists similar names, for an unknown name."""
    match text:
        case "tuned" | "drill:lr-low":
            return Start(*recipe_interface.learning_rate_start(text, TUNED_LEARNING_RATE))
        case "drill:weak-teacher":
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], "small", 1.0)
    raise recipe_interface.no_such_start(text, STARTS)

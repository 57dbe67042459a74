"""The settings and named starts of the recipe `distillation`. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from oven_recipes import recipe_interface
from oven_recipes.grpo.settings import SortingSettings, TeacherName

TUNED_LEARNING_RATE = 1e-3
"""The best of the learning rates that were tried with Adam on this policy over 30 steps."""


class DistillationSettings(SortingSettings):
    """All settings of the recipe, except the learning rate and the teachers, which come from a `Start`."""

    max_steps: int = Field(default=30, ge=1, le=10**9)
    prompts_per_step: int = Field(default=256, ge=1, description="prompts per step, each with one answer")
    divergence: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="β of the generalized Jensen-Shannon divergence: 0 is forward KL, 1 reverse KL",
    )
    temperature: float = Field(
        default=1.0, gt=0, description="temperature of sampling, and of both distributions in the loss"
    )
    eval_every: int = Field(default=10, ge=1, description="steps between held-out evaluations")


STARTS = {name: recipe_interface.LR_STARTS[name] for name in ("tuned", "drill:lr-low")} | {
    "drill:weak-teacher": "the teacher has an eighth of the policy's parameters and makes the same mistakes"
}
"""The names of the starts, and what is wrong with each."""


@dataclass(frozen=True)
class Start(recipe_interface.Start):
    """A learning rate and a list of teachers, weakest first. `teacher` is the teacher at the start of the training."""

    teachers: tuple[TeacherName, ...] = ("initial", "strong")
    teacher: TeacherName = "strong"

    def describe(self) -> str:
        return f"{super().describe()}, distilled from the {self.teacher} teacher"


def parse_start(text: str, seed: int, settings: DistillationSettings) -> Start:
    """Return the start named `text`. Raises ValueError, which lists similar names, for an unknown name."""
    match text:
        case "tuned" | "drill:lr-low":
            return Start(*recipe_interface.learning_rate_start(text, TUNED_LEARNING_RATE))
        case "drill:weak-teacher":
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], ("small", "strong"), "small")
    raise recipe_interface.no_such_start(text, STARTS)

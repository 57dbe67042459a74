"""The recipe's settings in one frozen model, and its named starts. Importing this needs no torch: a launcher lists and
checks starts before any learner starts."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from oven_recipes.base import no_such_start
from oven_recipes.grpo.settings import TeacherName
from oven_recipes.sorting_settings import SortingSettings

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


NAMES = ("tuned", "drill:lr-low", "drill:weak-teacher")


@dataclass(frozen=True)
class Start:
    """A learning rate and the teachers, weakest first, of which `teacher` is the one to begin with.

    `label` is empty unless the start is a drill: then it says what was done wrong on purpose.
    """

    name: str
    learning_rate: float
    teachers: tuple[TeacherName, ...] = ("initial", "strong")
    teacher: TeacherName = "strong"
    label: str = ""

    def describe(self) -> str:
        """Return one line for people. No agent sees it."""
        return f"learning rate {self.learning_rate:.3g}, distilled from the {self.teacher} teacher"


def parse_start(text: str) -> Start:
    """Return the start called `text`. Raises ValueError with the nearest names for any other text."""
    match text:
        case "tuned":
            return Start(text, TUNED_LEARNING_RATE)
        case "drill:lr-low":
            label = "the learning rate is set to 1/10 of the tuned one"
            return Start(text, TUNED_LEARNING_RATE / 10, label=label)
        case "drill:weak-teacher":
            label = "the teacher is an eighth of the policy's size and has the same mixed habits"
            return Start(text, TUNED_LEARNING_RATE, ("small", "strong"), "small", label)
    raise no_such_start(text, NAMES)

"""Named starting points: a tuned one, and drills with one known fault each. Importing this needs no torch."""

from dataclasses import dataclass

from oven_learner.recipes.base import no_such_start
from oven_learner.recipes.distillation.settings import TUNED_LEARNING_RATE
from oven_learner.recipes.grpo.starts import TeacherName

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
        """One line for people. It is shown to them, and to no agent."""
        return f"learning rate {self.learning_rate:.3g}, distilled from the {self.teacher} teacher"


def parse_start(text: str) -> Start:
    """The start called `text` (one of `NAMES`). Raises ValueError, naming the nearest names, for any other text."""
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

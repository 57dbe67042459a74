"""A prompt, the questions an oracle gets about it, and their known answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oven_learner.rewards.informativeness import informativeness_of


class KnownAnswer(NamedTuple):
    """Accepted answers to a question whose truth is known, in lower case.

    `says_what` are the true and specific answers, `right` the true but unspecific ones. Everything else is wrong;
    `wrong` holds examples of the same form.
    """

    says_what: tuple[str, ...]
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def informativeness(self, answer: str) -> float:
        """Return 0 for a wrong answer, 1/2 for a right one, and 1 for one that is right and specific."""
        return informativeness_of(answer, self.says_what, self.right)


@dataclass(frozen=True)
class Question:
    """A question about a prompt. `answer` is None where the truth is not written down; then judges decide."""

    text: str
    answer: KnownAnswer | None = None
    closed: bool = False
    """Whether the answer is yes or no. False for a question read from a file, where this is unknown."""


@dataclass(frozen=True)
class QuestionedPrompt:
    """A prompt, its language, and its questions."""

    prompt: str
    language: str
    questions: tuple[Question, ...]

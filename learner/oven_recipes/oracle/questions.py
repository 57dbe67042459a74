"""What an oracle is asked: a prompt, its questions, and what is known of their answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oven_learner.rewards.informativeness import informativeness_of


class KnownAnswer(NamedTuple):
    """What counts as an answer to a question whose truth is known, in lower case.

    `right` are the true answers that leave something unsaid, `says_what` those that say it; all else is wrong, and
    `wrong` are examples of that, of the same form.
    """

    says_what: tuple[str, ...]
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def informativeness(self, answer: str) -> float:
        """0 for a wrong answer, 1/2 for a right one, 1 for one that is right and says what."""
        return informativeness_of(answer, self.says_what, self.right)


@dataclass(frozen=True)
class Question:
    """A question about a prompt; `answer` is None where the truth is not written down: then judges decide."""

    text: str
    answer: KnownAnswer | None = None
    closed: bool = False
    """Whether it is answered by yes or no. Not known, and False, where the question was read from a file."""


@dataclass(frozen=True)
class QuestionedPrompt:
    """A prompt, the language that it is in, and its questions."""

    prompt: str
    language: str
    questions: tuple[Question, ...]

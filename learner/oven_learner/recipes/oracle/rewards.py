"""The committee's rules, of which only the first has weight: known answers, the form, and how long answers are."""

from __future__ import annotations

from typing import Any

from oven_learner.recipes.oracle.questions import KnownAnswer
from oven_learner.rewards.rule_members import RewardFunction

KNOWN = "known_answer"


def known_answer(
    completions: list[str], says_what: list[list[str]], right: list[list[str]], **_: Any
) -> list[float | None]:
    """0 for a wrong answer, ½ for a right one, 1 for one that is right and says what; None where the truth is not
    known: that is left to judges. `completions` are answers without their confidence."""
    return [
        KnownAnswer(tuple(what), tuple(broad)).informativeness(given) if what else None
        for given, what, broad in zip(completions, says_what, right, strict=True)
    ]


RULES: dict[str, RewardFunction] = {KNOWN: known_answer}

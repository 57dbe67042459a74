"""A rule that scores how informative an answer is. It needs known answers, but no judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from oven_learner.completions.plain_text import as_text

WRONG, VAGUE, SPECIFIC = 0.0, 0.5, 1.0
"""Scores of a wrong answer, of a correct but vague one, and of a correct one that states what the text says."""
_WORDS = re.compile(r"[^\W_]+")


def informativeness_of(answer: str, says_what: Collection[str], correct: Collection[str]) -> float:
    """Return SPECIFIC for an answer in `says_what`, VAGUE for one in `correct`, and WRONG for any other. Both
    collections must be in lower case with single spaces. Case, punctuation and white space of the answer are ignored.
    Otherwise the complete answer must match."""
    plain_answer = " ".join(_WORDS.findall(answer.lower()))
    if plain_answer in says_what:
        return SPECIFIC
    return VAGUE if plain_answer in correct else WRONG


def informativeness(
    completions: Sequence[Any],
    says_what: Sequence[Collection[str] | None] | None = None,
    right: Sequence[Collection[str] | None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Score completions by the data's `says_what` and `right` columns, which are lists of answers per row. The rule
    abstains if both lists are empty, because the truth is then unknown."""
    empty_column: list[Collection[str] | None] = [None] * len(completions)
    rows = zip(completions, says_what or empty_column, right or empty_column, strict=True)
    return [
        informativeness_of(as_text(completion), specific or (), vague or ()) if specific or vague else None
        for completion, specific, vague in rows
    ]

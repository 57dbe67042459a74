"""A rule that scores how informative an answer is, by comparing it with known answers instead of asking a judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from oven_learner.completions.plain_text import as_text

WRONG, VAGUE, SPECIFIC = 0.0, 0.5, 1.0
"""Scores of a wrong answer, of a correct but vague one, and of a correct and specific one."""
_WORDS = re.compile(r"[^\W_]+")


def score_answer(answer: str, specific_answers: Collection[str], vague_answers: Collection[str]) -> float:
    """Return SPECIFIC for an answer in `specific_answers`, VAGUE for one in `vague_answers`, and WRONG for any other.
    Both collections must be in lower case with single spaces. The whole answer must match, ignoring case, punctuation
    and white space."""
    plain_answer = " ".join(_WORDS.findall(answer.lower()))
    if plain_answer in specific_answers:
        return SPECIFIC
    return VAGUE if plain_answer in vague_answers else WRONG


def informativeness(
    completions: Sequence[Any],
    specific_answers: Sequence[Collection[str] | None] | None = None,
    vague_answers: Sequence[Collection[str] | None] | None = None,
    **_: Any,
) -> list[float | None]:
    """Score completions by the data columns `specific_answers` and `vague_answers`, which contain a list of known
    answers per row. The rule abstains on a row if both lists are empty, because there is nothing to compare with."""
    empty_column: list[Collection[str] | None] = [None] * len(completions)
    rows = zip(completions, specific_answers or empty_column, vague_answers or empty_column, strict=True)
    return [
        score_answer(as_text(completion), specific or (), vague or ()) if specific or vague else None
        for completion, specific, vague in rows
    ]

"""A rule that scores how informative an answer is. It needs the truth, but no judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from oven_learner.completions.plain_text import as_text

WRONG, RIGHT, SAYS_WHAT = 0.0, 0.5, 1.0
"""Scores of a wrong answer, of a right answer that omits what the text says, and of a right answer that states it."""
_WORDS = re.compile(r"[^\W_]+")


def informativeness_of(answer: str, says_what: Collection[str], right: Collection[str]) -> float:
    """Return SAYS_WHAT, RIGHT or WRONG.

    Both collections are lower case with single spaces. The answer's case, punctuation and white space are ignored;
    otherwise the whole answer must match.
    """
    plain = " ".join(_WORDS.findall(answer.lower()))
    return SAYS_WHAT if plain in says_what else RIGHT if plain in right else WRONG


def informativeness(
    completions: Sequence[Any],
    says_what: Sequence[Collection[str] | None] | None = None,
    right: Sequence[Collection[str] | None] | None = None,
    **_: Any,
) -> list[float | None]:
    """The entry point `informativeness`: scores answers by the data's columns `says_what` and `right`, lists of answers
    per row.

    Abstains if both are empty, because the truth is then unknown.
    """
    nothing: list[Collection[str] | None] = [None] * len(completions)
    return [
        informativeness_of(as_text(completion), what or (), true or ()) if what or true else None
        for completion, what, true in zip(completions, says_what or nothing, right or nothing, strict=True)
    ]

"""How much an answer tells where the truth is known: a rule that needs no judge."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from oven_learner.completions.plain_text import as_text

WRONG, RIGHT, SAYS_WHAT = 0.0, 0.5, 1.0
"""An answer that is wrong; one that is right and leaves something unsaid; one that is right and says what."""
_WORDS = re.compile(r"[^\W_]+")


def informativeness_of(answer: str, says_what: Collection[str], right: Collection[str]) -> float:
    """SAYS_WHAT, RIGHT or WRONG. Both collections are in lower case, words with one space between; of the answer,
    case, punctuation and white space do not count, and everything else does: the whole of it has to be known."""
    plain = " ".join(_WORDS.findall(answer.lower()))
    return SAYS_WHAT if plain in says_what else RIGHT if plain in right else WRONG


def informativeness(
    completions: Sequence[Any],
    says_what: Sequence[Collection[str] | None] | None = None,
    right: Sequence[Collection[str] | None] | None = None,
    **_: Any,
) -> list[float | None]:
    """The entry point `informativeness`: each answer by the data's columns `says_what` and `right`, a list of answers
    in each row. It abstains where neither has one, since nothing is known of the truth there."""
    nothing: list[Collection[str] | None] = [None] * len(completions)
    return [
        informativeness_of(as_text(given), what or (), true or ()) if what or true else None
        for given, what, true in zip(completions, says_what or nothing, right or nothing, strict=True)
    ]

"""Parse answers that start with a confidence: `[epistemic status: 85] The text is about cooking.`"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

FORM = re.compile(r"\s*\[epistemic status: (100|[1-9]?[0-9])\]\s+(\S.*)", re.DOTALL)
"""The format of a whole answer: an integer from 0 to 100, then some text."""
MARK = "epistemicstatus"
"""Letters that the answer text must not contain in a row. A second mark would show the confidence to judges, and could
contradict the first."""


class OracleAnswer(NamedTuple):
    """An answer without its mark, and its confidence from 0 to 1."""

    confidence: float
    text: str


def parse_oracle_output(text: str) -> OracleAnswer | None:
    """Return the answer, or None for a wrong format: no mark or two, a number outside 0 to 100, or no text.

    There is no default confidence. A default of 0.5 would cost nothing for half-right answers, so that omitting the
    mark would pay.
    """
    match = FORM.fullmatch(text)
    if match is None or MARK in _letters(match[2]):
        return None
    return OracleAnswer(int(match[1]) / 100, match[2].strip())


def _letters(text: str) -> str:
    """Return the normalised letters only, so that spaces, signs and wide letters cannot hide a mark."""
    return "".join(character for character in unicodedata.normalize("NFKC", text).casefold() if character.isalpha())

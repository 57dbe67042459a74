"""Answers that begin with how sure they are: `[epistemic status: 85] The text is about cooking.`"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

FORM = re.compile(r"\s*\[epistemic status: (100|[1-9]?[0-9])\]\s+(\S.*)", re.DOTALL)
"""The whole of an answer: a whole number of 0 to 100, and something after it."""
MARK = "epistemicstatus"
"""The letters that an answer must not have in a row. A second mark would show a judge how sure the answer says it is,
and could say something else than the first."""


class OracleAnswer(NamedTuple):
    """An answer without its mark, and the confidence that the mark states, from 0 to 1."""

    confidence: float
    text: str


def parse_oracle_output(text: str) -> OracleAnswer | None:
    """None for what is not in the form: no mark or a second one, a number outside 0 to 100, or no answer after it.

    There is no default confidence. One of .5 would cost nothing where an answer is half right, so that leaving the mark
    out would pay.
    """
    found = FORM.fullmatch(text)
    if found is None or MARK in _letters(found[2]):
        return None
    return OracleAnswer(int(found[1]) / 100, found[2].strip())


def _letters(text: str) -> str:
    """The letters alone, wide and capital ones as the usual: spaces and signs between them hide no mark."""
    return "".join(one for one in unicodedata.normalize("NFKC", text).casefold() if one.isalpha())

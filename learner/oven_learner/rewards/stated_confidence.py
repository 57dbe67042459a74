"""Answers that begin with how sure they are: `[epistemic status: 85] The text is about cooking.`"""

from __future__ import annotations

import re
from typing import NamedTuple

FORM = re.compile(r"\s*\[epistemic status: (100|[1-9]?[0-9])\]\s+(\S.*)", re.DOTALL)
"""The whole of an answer: a whole number of 0 to 100, and something after it. A second mark in the answer is text."""


class OracleAnswer(NamedTuple):
    """An answer without its mark, and the confidence that the mark states, from 0 to 1."""

    confidence: float
    text: str


def parse_oracle_output(text: str) -> OracleAnswer | None:
    """None for what is not in the form: no mark, a number outside 0 to 100, or no answer after it.

    There is no default confidence. One of .5 would cost nothing where an answer is half right, so that leaving the mark
    out would pay.
    """
    found = FORM.fullmatch(text)
    return None if found is None else OracleAnswer(int(found[1]) / 100, found[2].strip())

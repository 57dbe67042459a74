"""The rule `exact`, which compares answers with the data's `answer` column."""

from __future__ import annotations

from typing import Any

from oven_learner.completions.plain_text import as_text


def exact(completions: list[Any], answer: list[str | None] | None = None, **_: Any) -> list[float | None]:
    """Return 1 for each completion that equals its answer, ignoring surrounding white space, and otherwise 0. The rule
    abstains on rows without an answer."""
    answers = answer or [None] * len(completions)
    return [
        None if expected is None else float(as_text(text).strip() == str(expected).strip())
        for text, expected in zip(completions, answers, strict=True)
    ]

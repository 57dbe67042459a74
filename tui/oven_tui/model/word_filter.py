"""Filters items by words. All words must match, each in the item's whole text or in one field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

Item = TypeVar("Item")
STEP_RANGE = re.compile(r"(?=.*\d)(\d*)(-?)(\d*)")  # N, N-M, N- or -M


def word_filter(
    words: str,
    text: Callable[[Item], str],
    fields: Mapping[str, Callable[[Item], str]] | None = None,
    step: Callable[[Item], int] | None = None,
) -> Callable[[Item], bool]:
    """Return a filter for `words`, all of which must match. A word is a regular expression to search for in `text`, or
    `FIELD:EXPRESSION`. With `step`, a word can also be `step:N`, `step:N-M`, `step:N-` or `step:-M`. `!` negates a
    word. An invalid expression is matched literally."""
    tests = [_make_test(word, text, fields or {}, step) for word in words.split() if word != "!"]
    return lambda item: all(test(item) for test in tests)


def _make_test(
    word: str,
    text: Callable[[Item], str],
    fields: Mapping[str, Callable[[Item], str]],
    step: Callable[[Item], int] | None,
) -> Callable[[Item], bool]:
    is_negated, word = word.startswith("!"), word.removeprefix("!")
    name, colon, expression = word.partition(":")
    if step is not None and name == "step" and (span := STEP_RANGE.fullmatch(expression)):
        first = int(span[1] or 0)
        last: float = first
        if span[2]:
            last = int(span[3]) if span[3] else math.inf
        return lambda item: (first <= step(item) <= last) != is_negated
    if colon and name in fields:
        text, word = fields[name], expression
    pattern = _compile_pattern(word)
    return lambda item: bool(pattern.search(text(item))) != is_negated


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE | re.MULTILINE)
    except re.error:
        return re.compile(re.escape(text), re.IGNORECASE)

"""Filters by words: regular expressions that must all match, each in the whole text or in one field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

Item = TypeVar("Item")


def word_filter(
    words: str,
    text: Callable[[Item], str],
    fields: Mapping[str, Callable[[Item], str]] | None = None,
    step: Callable[[Item], int] | None = None,
) -> Callable[[Item], bool]:
    """Return a filter for `words`, all of which must match.

    A word is a regular expression that is searched in `text`, `FIELD:EXPRESSION`, or with `step` also `step:N`,
    `step:N-M`, `step:N-` or `step:-M`. `!` before a word negates it. An invalid expression is matched literally.
    """
    tests = [_test(word, text, fields or {}, step) for word in words.split() if word != "!"]
    return lambda item: all(test(item) for test in tests)


def _test(
    word: str,
    text: Callable[[Item], str],
    fields: Mapping[str, Callable[[Item], str]],
    step: Callable[[Item], int] | None,
) -> Callable[[Item], bool]:
    inverse, word = word.startswith("!"), word.removeprefix("!")
    name, colon, rest = word.partition(":")
    if step is not None and name == "step" and (span := re.fullmatch(r"(?=.*\d)(\d*)(-?)(\d*)", rest)):
        first = int(span[1] or 0)
        last = int(span[3]) if span[3] else math.inf if span[2] else first
        return lambda item: (first <= step(item) <= last) != inverse
    if colon and name in fields:
        text, word = fields[name], rest
    pattern = _pattern(word)
    return lambda item: bool(pattern.search(text(item))) != inverse


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE | re.MULTILINE)
    except re.error:
        return re.compile(re.escape(text), re.IGNORECASE)

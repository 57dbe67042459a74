"""Paragraphs ranked by a question's words: BM25 (Robertson and Zaragoza 2009, section 3). Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

K1: Final = 1.2
"""How soon a repeated word counts no more; the book's range is 1.2 to 2."""
B: Final = 0.75
"""How much a long paragraph is marked down, 0 to 1; the usual value."""
_WORD: Final = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """In lower case; a name with underscores is one word."""
    return _WORD.findall(text.lower())


def scores(question: str, paragraphs: Sequence[str]) -> list[float]:
    """BM25 of each paragraph, 0 where it has none of the words."""
    counts = [Counter(words(one)) for one in paragraphs]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / max(1, len(lengths)) or 1.0
    wanted = set(words(question))
    found = {word: sum(word in count for count in counts) for word in wanted}
    rare = {word: math.log(1 + (len(counts) - n + 0.5) / (n + 0.5)) for word, n in found.items()}
    return [
        sum(
            rare[word] * count[word] * (K1 + 1) / (count[word] + K1 * (1 - B + B * length / mean))
            for word in sorted(wanted & count.keys())
        )
        for count, length in zip(counts, lengths, strict=True)
    ]


def ranked(question: str, paragraphs: Sequence[str]) -> list[int]:
    """Places of the paragraphs, the best first, equals in their order."""
    found = scores(question, paragraphs)
    return sorted(range(len(paragraphs)), key=lambda at: (-found[at], at))

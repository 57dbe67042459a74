"""Text in which there is nothing to judge, which is worth 0 without a question that costs.

Only what hardly a task asks for: a few characters over and over, at a length at which no answer is that by chance, and
text of characters that stand for no writing at all. Short answers are never degenerate, and neither is prose that
repeats itself: that is for a judge to see.
"""

from __future__ import annotations

import unicodedata
from typing import Final

SHORTEST: Final = 128
"""Characters. Rows of dashes, a long number of ones or a laugh are shorter."""
LONGEST_PERIOD: Final = 8
"""Characters of what is repeated: "ab", "haha ", "0, 1, "; a repeated word or sentence may have been asked for."""
NOISE: Final = 0.5
"""Share of characters that stand for no writing: replacements of undecodable bytes, unassigned and private ones."""
NOISY_FROM: Final = 16
"""Characters: one unknown symbol is a font's fault."""


def is_degenerate(text: str, prompt: str = "") -> bool:
    """`text` as it would be shown. What the prompt itself contains is never degenerate: it was asked about."""
    return (_repeats(text) or _is_noise(text)) and text not in prompt


def _repeats(text: str) -> bool:
    return len(text) >= SHORTEST and any(text.startswith(text[period:]) for period in range(1, LONGEST_PERIOD + 1))


def _is_noise(text: str) -> bool:
    if len(text) < NOISY_FROM:
        return False
    unwritten = sum(one == "\ufffd" or unicodedata.category(one) in ("Cn", "Co") for one in text)
    return unwritten >= NOISE * len(text)

"""Which of an author's prompts the learner accepts: well-formed and new ones that do not quote the held-out set."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from oven_runs.home.authored_prompts import fault, normalized

QUOTE_WORDS = 8
"""Consecutive words of a held-out prompt that count as a quotation: PaLM's test for contamination (Chowdhery et al.
2022, arXiv 2204.02311, section 8). A shorter held-out prompt is quoted by a text that contains all of it."""
LEAST_WORDS = 4
"""A held-out prompt of fewer words ("wave hello") is quoted only by an equal text; as a part it would bar many
prompts."""
TEMPLATE_ROWS = 20_000
"""Prompts of the data whose phrases count as common forms and not as quotations. Reading them takes about a second
before the first step."""
REFUSALS = {
    "malformed": "lines of the author's file that are not a prompt with its provenance",
    "unknown_topic": "prompts of a topic that the source does not have",
    "empty": "prompts without text",
    "too_long": "prompts beyond 4,000 characters",
    "control": "prompts with control or invisible characters",
    "duplicate": "prompts that the data, or an earlier prompt, have already",
    "held_out": "prompts that quote a held-out one",
    "capped": "prompts beyond author.total",
}
"""Reason of a refusal → what is counted."""


class Admission:
    """Decides which texts are refused. `own`: the prompts of the data. `held_out`: those that the run is measured
    on."""

    def __init__(self, own: Sequence[str], held_out: Iterable[str]) -> None:
        self._own = np.unique(np.fromiter(map(key_of, own), dtype=np.uint64, count=len(own)))  # [prompts], sorted
        held = [words for text in held_out if (words := _words(text))]
        self._whole = {tuple(words) for words in held}
        quotes = {gram for words in held if len(words) >= LEAST_WORDS for gram in _grams(words, QUOTE_WORDS)}
        self.held_out = len(held)
        """The number of held-out prompts."""
        entire = {tuple(words) for words in held if LEAST_WORDS <= len(words) <= QUOTE_WORDS}
        for text in islice(own, TEMPLATE_ROWS if quotes else 0):
            quotes.difference_update(_grams(_words(text), QUOTE_WORDS))
        self._quotes = quotes | entire
        self._lengths = sorted({len(gram) for gram in self._quotes})

    def refusal(self, text: str, accepted: Collection[int]) -> str:
        """Return one of REFUSALS; empty if the text is acceptable. `accepted`: keys of the prompts accepted so far."""
        if why := fault(text):
            return why
        key, words = key_of(text), _words(text)
        index = int(np.searchsorted(self._own, np.uint64(key)))
        if key in accepted or (index < len(self._own) and int(self._own[index]) == key):
            return "duplicate"
        if tuple(words) in self._whole or any(
            gram in self._quotes for length in self._lengths for gram in _windows(words, length)
        ):
            return "held_out"
        return ""


def text_of(prompt: Any) -> str:
    """Return a prompt's text; for messages, their contents, one per line."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(message.get("content", "")) for message in prompt)


def key_of(text: str) -> int:
    """Return the first 64 bits of BLAKE2b of the normalized text, which are equal for duplicates."""
    data = normalized(text).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _words(text: str) -> list[str]:
    """Split into words without punctuation. Mathematical signs are words."""
    return [bare for word in normalized(text).split() if (bare := word.strip(".,;:!?\"'()[]"))]


def _windows(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[start : start + length]) for start in range(len(words) - length + 1))


def _grams(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    """Yield the n-grams of this length; for a shorter text, all of it."""
    return _windows(words, length) if len(words) >= length else iter([tuple(words)])

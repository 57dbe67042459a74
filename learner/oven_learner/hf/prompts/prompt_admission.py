"""Decides which authored prompts a source accepts, and what share of the draws they get in each chunk.

The initial share is 0. All draws and random numbers are then the same as without authored prompts.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from oven_learner.hf.prompts.injected_prompts import InjectedPrompts
from oven_runs.home.authored_prompts import normalized, prompt_fault

CAP = 256
"""Maximum number of stored authored prompts. The oldest are evicted first, because training has already used them."""
SHARE = "data.authored_share"
"""Name of the knob."""
QUOTE_WORDS = 8
"""Number of consecutive words of a held-out prompt that count as a quotation, as in PaLM's contamination test
(Chowdhery et al. 2022, arXiv 2204.02311, section 8). A shorter prompt counts as quoted if an authored prompt contains
all of it."""
MIN_WORDS = 4
"""A held-out prompt with fewer words ("wave hello") counts as quoted only if an authored prompt is equal to it.
Otherwise it would exclude many prompts."""
TEMPLATE_ROWS = 20_000
"""Number of prompts in the data whose phrases are common and do not count as quotations. Reading them takes about a
second before the first step."""


class AuthoredPrompts:
    """The pool of authored prompts, the timeline of the share, and the position in the author's file."""

    def __init__(self) -> None:
        self.pool = InjectedPrompts(CAP)
        self.timeline = [(0, 0.0)]
        """List of (first chunk, share from that chunk on), oldest first."""
        self.offset = 0
        """Number of bytes already read from the author's file."""
        self.accepted_keys: set[int] = set()
        """Keys (`key_of`) of all accepted prompts, including evicted ones."""
        self.refusals: Counter[str] = Counter()
        """Number of refused prompts by reason (docs/language-models.md)."""

    @property
    def share(self) -> float:
        return self.timeline[-1][1]

    def set_share(self, share: float, chunk: int) -> None:
        self.timeline = [entry for entry in self.timeline if entry[0] < chunk] + [(chunk, share)]

    def drawable_slots(self, topic: str, chunk: int) -> tuple[float, Sequence[int]]:
        """Return the share in a chunk and the slots to draw from, or (0, ()) if the topic has no prompts."""
        share = self.timeline[bisect_right([start for start, _ in self.timeline], chunk) - 1][1]
        slots = self.pool.drawable_slots(topic, chunk) if share > 0 else ()
        return (share, slots) if slots else (0.0, ())

    def state(self) -> dict[str, Any]:
        return {
            "pool": self.pool.state(),
            "timeline": self.timeline,
            "offset": self.offset,
            "taken": sorted(self.accepted_keys),
            "refused": dict(self.refusals),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`. Raises ConfigError, and changes nothing, if its cap is higher."""
        self.pool.load(state["pool"])
        self.timeline = [(int(chunk), float(share)) for chunk, share in state["timeline"]]
        self.offset, self.accepted_keys = int(state["offset"]), set(state["taken"])
        self.refusals = Counter(state["refused"])


class Admission:
    """Decides which prompts are refused. `data_prompts` are used for training, and `held_out` for evaluation."""

    def __init__(self, data_prompts: Sequence[str], held_out: Iterable[str]) -> None:
        self._data_keys = {key_of(text) for text in data_prompts}
        held_out_words = [words for text in held_out if (words := _split_words(text))]
        self.held_out_count = len(held_out_words)
        """Number of held-out prompts."""
        quotes = {phrase for words in held_out_words if len(words) >= MIN_WORDS for phrase in _phrases(words)}
        for text in islice(data_prompts, TEMPLATE_ROWS if quotes else 0):
            quotes.difference_update(_phrases(_split_words(text)))
        self._full_prompts = {tuple(words) for words in held_out_words}
        # A short prompt that is a single phrase counts as a quotation even if the phrase is common in the data.
        self._quotes = quotes | {words for words in self._full_prompts if MIN_WORDS <= len(words) <= QUOTE_WORDS}
        self._lengths = sorted({len(phrase) for phrase in self._quotes})

    def refusal(self, text: str, accepted_keys: Collection[int]) -> str:
        """Return the reason for refusing the prompt, or an empty string."""
        if refusal := prompt_fault(text):
            return refusal
        if key_of(text) in self._data_keys or key_of(text) in accepted_keys:
            return "duplicate"
        words = _split_words(text)
        is_quoting = any(phrase in self._quotes for length in self._lengths for phrase in _windows(words, length))
        return "held_out" if is_quoting or tuple(words) in self._full_prompts else ""


def text_of(prompt: Any) -> str:
    """Return a prompt's text. For messages, join their contents with newlines."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(message.get("content", "")) for message in prompt)


def key_of(text: str) -> int:
    """Return the first 64 bits of the normalized text's BLAKE2b hash, which are equal for duplicates."""
    data = normalized(text).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _split_words(text: str) -> list[str]:
    """Split a string into words without punctuation. Mathematical signs are words."""
    return [word for part in normalized(text).split() if (word := part.strip(".,;:!?\"'()[]"))]


def _windows(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[start : start + length]) for start in range(len(words) - length + 1))


def _phrases(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield all runs of QUOTE_WORDS consecutive words, or all words of a shorter text."""
    return _windows(words, QUOTE_WORDS) if len(words) >= QUOTE_WORDS else iter([tuple(words)])

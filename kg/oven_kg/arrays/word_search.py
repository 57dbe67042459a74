"""Searches a large graph's names for whole words. Each search reads all names, about 10 ms for ten million bytes.

A word is a run of letters and digits; every byte that is not ASCII counts as a letter. ASCII letters match in either
case, other letters only in the case of the name.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oven_kg.arrays.graph_arrays import GraphArrays

IN_WORD: Final = rb"[0-9a-z\x80-\xff]"


class WordSearch:
    """Finds the nodes whose names have a word."""

    def __init__(self, arrays: GraphArrays) -> None:
        self._arrays = arrays

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(N,): where each name begins in the text."""
        return self._arrays.name_offsets[:-1] + np.arange(1, self._arrays.nodes + 1)

    @cached_property
    def _text(self) -> bytes:
        """All names, with a zero before each and after the last."""
        return np.insert(self._arrays.name_bytes, self._arrays.name_offsets, 0).tobytes().lower()

    def nodes(self, word: str, most: int) -> NDArray[np.int32]:
        """The first `most` nodes whose names have the word, ascending."""
        encoded = re.escape(word.encode("utf-8", "replace"))
        # The word comes first in the pattern, so that the search for it is quick.
        matches = re.finditer(encoded + rb"(?<!" + IN_WORD + encoded + rb")(?!" + IN_WORD + rb")", self._text)
        first = np.array([match.start() for match in islice(matches, most)], np.int64)
        return np.unique(np.searchsorted(self._starts, first, side="right") - 1).astype(np.int32)


def split(text: str) -> list[str]:
    """The words of a query, each once."""
    return list(dict.fromkeys(re.findall(r"[0-9a-z\u0080-\U0010ffff]+", text.lower())))

"""An index of the words in a large graph's names: sorted hashes of all words, built in a fraction of a second.

A word is a run of letters and digits; every byte that is not ASCII counts as a letter. ASCII letters match in either
case, other letters only as they are written in the name.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oven_kg.arrays.graph_arrays import GraphArrays

CHUNK: Final = 2**19
"""Bytes of names that are hashed at a time; hashing takes 40 times as much memory."""
BASE: Final = 0x9E3779B97F4A7C15
"""Base of the polynomial hash of a word, modulo 2^64: an odd number with random-looking bits."""

_LOWER_CASE: Final = np.arange(256, dtype=np.uint64)
_LOWER_CASE[65:91] += np.uint64(32)
_IN_WORD: Final = np.zeros(256, bool)
_IN_WORD[128:] = True
for _first, _last in (b"09", b"AZ", b"az"):
    _IN_WORD[_first : _last + 1] = True


class WordIndex:
    """Word → nodes whose names have it. It takes 12 bytes per word of a name."""

    def __init__(self, arrays: GraphArrays) -> None:
        offsets = arrays.name_offsets
        cuts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]) + 1, CHUNK))
        bounds = np.unique(np.concatenate([cuts, [0, arrays.nodes]])).tolist()
        hashes, nodes = [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
        for first, last in pairwise(bounds):
            text = np.asarray(arrays.name_bytes[offsets[first] : offsets[last]])
            starts = offsets[first:last] - offsets[first]
            chunk_hashes, positions = _word_hashes(text, starts)
            hashes.append(chunk_hashes)
            nodes.append((np.searchsorted(starts, positions, side="right") - 1 + first).astype(np.int32))
        all_hashes, all_nodes = np.concatenate(hashes), np.concatenate(nodes)
        order = np.argsort(all_hashes, kind="stable")
        all_hashes, all_nodes = all_hashes[order], all_nodes[order]
        new = np.ones(len(all_hashes), bool)  # a word that a name repeats counts once
        new[1:] = (all_hashes[1:] != all_hashes[:-1]) | (all_nodes[1:] != all_nodes[:-1])
        self._hashes, self._nodes = all_hashes[new], all_nodes[new]

    def nodes(self, word: str) -> NDArray[np.int32]:
        """The nodes whose names have the word, ascending."""
        text = np.frombuffer(word.encode("utf-8", "replace"), np.uint8)
        hashes, _ = _word_hashes(text, np.zeros(1, np.int64))
        if len(hashes) != 1:
            return self._nodes[:0]
        first, end = (np.searchsorted(self._hashes, hashes[0], side=side) for side in ("left", "right"))
        return self._nodes[first:end]


def split(text: str) -> list[str]:
    """The words of a query, each once."""
    return list(dict.fromkeys(re.findall(r"[0-9a-z\u0080-\U0010ffff]+", text.lower())))


def _word_hashes(text: NDArray[np.uint8], name_starts: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash and position of each word in `text`, a concatenation of names that begin at `name_starts`."""
    inside = _IN_WORD[text]
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    name_starts = name_starts[name_starts < len(text)]
    begins[name_starts] = inside[name_starts]
    first = np.flatnonzero(begins)
    if not len(first):
        return np.empty(0, np.uint64), first
    bounds = np.concatenate([[0], first, [len(text)]])
    places = np.arange(len(text)) - np.repeat(bounds[:-1], np.diff(bounds))  # since the last beginning of a word
    powers = np.cumprod(np.full(int(places.max()) + 1, BASE, np.uint64))
    values = (_LOWER_CASE[text] + np.uint64(1)) * powers[places]
    values[~inside] = 0
    return np.add.reduceat(values, first), first

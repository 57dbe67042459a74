"""The nodes of `Arrays` as networkx wants them: from a name to its number and back, many at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

import numpy as np

from oven_kg.large.arrays import Arrays
from oven_kg.large.networkx.csr import Integers

KEPT: Final = 2**16
"""Names whose numbers are kept: networkx asks for a node several times over while it is at it, and each bisection of
half a million names costs 8 µs. Some 8 MB at most."""
PIECE: Final = 2**12
"""Names decoded at a time when all are gone through."""


class Names:
    """Node names of a large graph, in the order of its nodes."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._kept: dict[str, int] = {}
        self._bytes = arrays.name_bytes.data if len(arrays.name_bytes) else memoryview(b"")

    def __len__(self) -> int:
        return self._arrays.nodes

    def __contains__(self, node: object) -> bool:
        return self.find(node) is not None

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), PIECE):
            yield from self.decode(range(first, min(first + PIECE, len(self))))

    def find(self, node: object) -> int | None:
        """The node's number; None if the graph has no such node. Raises TypeError for what cannot be hashed, as a
        dict does."""
        hash(node)
        if not isinstance(node, str):
            return None
        found = self._kept.get(node)
        if found is None:
            try:
                found = self._arrays.index(node)
            except KeyError:
                return None
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[node] = found
        return found

    def index(self, node: Hashable) -> int:
        """The node's number. Raises KeyError for a node that the graph has not."""
        found = self.find(node)
        if found is None:
            raise KeyError(node)
        return found

    def decode(self, indices: Sequence[int] | Integers) -> list[str]:
        """The names of the nodes with these numbers."""
        at, offsets, held = np.asarray(indices, np.int64), self._arrays.name_offsets, self._bytes
        return [
            str(held[first:last], "utf-8")
            for first, last in zip(offsets[at].tolist(), offsets[at + 1].tolist(), strict=True)
        ]

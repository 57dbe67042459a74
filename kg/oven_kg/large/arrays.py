"""A directed multigraph as sorted arrays: compressed sparse rows in both directions, names, kinds and a content hash.

`N` nodes, `E` edges, `B` bytes of all names. Nodes are numbered in the order of their names (as UTF-8), so that the
arrays, and with them the hash, depend on what the graph holds and not on the order in which it was read; a name is
found by bisection, without an index. Two edges of one relation between the same nodes are one.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Size: TypeAlias = Literal["N", "N+1", "E", "B"]

COLUMNS: Final[Mapping[str, tuple[str, Size]]] = MappingProxyType(
    {
        "indptr": ("<i8", "N+1"),
        "dst": ("<i4", "E"),
        "rel": ("<i2", "E"),
        "weight": ("<f4", "E"),
        "in_indptr": ("<i8", "N+1"),
        "in_src": ("<i4", "E"),
        "in_rel": ("<i2", "E"),
        "in_weight": ("<f4", "E"),
        "in_edge": ("<i4", "E"),
        "name_bytes": ("|u1", "B"),
        "name_offsets": ("<i8", "N+1"),
        "kinds": ("<i2", "N"),
    }
)
"""Field of `Arrays` → numpy's type of it, and its length. All have one dimension."""

NODES: Final = 2**24
"""The most nodes of a graph: with 2^15 relations, an edge's two ends and its relation still fit 64 bits, by which they
are sorted."""
EDGES: Final = 2**31 - 1
"""The most edges of a graph: `in_edge` counts them in 32 bits."""
RELATIONS: Final = 2**15 - 1
"""The most relations, and the most kinds, of a graph: 16 bits each."""

SIGNPOST: Final = 32
"""Of a graph with 500,000 nodes 16,000 names are then read when the first is looked for (7 ms, 1 MB), and a name is
found in 3 µs in place of 9."""

Row: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.float32]]
"""The edges out of a node, or into it: their other ends, relations and weights; views, in the order of the ends."""


@dataclass(frozen=True, eq=False, repr=False)
class Arrays:
    """A graph that does not change. Its arrays are read-only, and may be mapped from files."""

    nodes: int
    indptr: NDArray[np.int64]
    """(N+1,): node i's edges out are `indptr[i]` to `indptr[i+1]`, sorted by (dst, rel)."""
    dst: NDArray[np.int32]
    """(E,): where an edge ends."""
    rel: NDArray[np.int16]
    """(E,): position in `relations`."""
    weight: NDArray[np.float32]
    """(E,): finite, 0 or more."""
    in_indptr: NDArray[np.int64]
    """(N+1,): node i's edges in are `in_indptr[i]` to `in_indptr[i+1]`, sorted by (src, rel)."""
    in_src: NDArray[np.int32]
    in_rel: NDArray[np.int16]
    in_weight: NDArray[np.float32]
    in_edge: NDArray[np.int32]
    """(E,): position of the same edge in `dst`, `rel` and `weight`."""
    name_bytes: NDArray[np.uint8]
    """(B,): all names one after another, UTF-8, ascending."""
    name_offsets: NDArray[np.int64]
    """(N+1,): node i's name is `name_bytes[name_offsets[i]:name_offsets[i+1]]`."""
    kinds: NDArray[np.int16]
    """(N,): position in `kind_names`."""
    relations: tuple[str, ...]
    kind_names: tuple[str, ...]
    """Ascending; "" is the kind of a node of which none was said."""
    licence: str
    """What the graph may be used under, as an SPDX identifier or in words; "" if unsaid."""
    sha: str
    """SHA-256 of all of the above (`content_sha`), in hexadecimal."""

    @property
    def edges(self) -> int:
        return len(self.dst)

    def __repr__(self) -> str:
        return f"<Arrays {self.sha[:12]}: {self.nodes} nodes, {self.edges} edges>"

    def name(self, node: int) -> str:
        """Raises IndexError for a number that no node has."""
        if not 0 <= node < self.nodes:
            raise IndexError(f"no node {node}: there are {self.nodes}")
        return str(self._bytes_of(node), "utf-8")

    def names(self, nodes: Iterable[int]) -> list[str]:
        return [self.name(int(node)) for node in nodes]

    def index(self, name: str) -> int:
        """The node of that name. Raises KeyError if there is none."""
        at, found = self._bisect(name)
        if not found:
            raise KeyError(name)
        return at

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._bisect(name)[1]

    def near(self, name: str, count: int = 3) -> list[str]:
        """The names that stand where `name` would, for an error about one that is not there."""
        first = max(0, min(self._bisect(name)[0] - count // 2, self.nodes - count))
        return self.names(range(first, min(first + count, self.nodes)))

    def out(self, node: int) -> Row:
        first, last = self._indptr[node], self._indptr[node + 1]
        return self.dst[first:last], self.rel[first:last], self.weight[first:last]

    def into(self, node: int) -> Row:
        first, last = self._in_indptr[node], self._in_indptr[node + 1]
        return self.in_src[first:last], self.in_rel[first:last], self.in_weight[first:last]

    def source(self, edge: int) -> int:
        """The node that the edge at a position of `dst` leaves."""
        return int(np.searchsorted(self.indptr, edge, side="right")) - 1

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """(E,): where each edge begins; made when it is first asked for, 4 bytes an edge."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.indptr))

    @property
    def isolated(self) -> int:
        """How many nodes have no edge at all."""
        return int(np.count_nonzero(np.diff(self.indptr) + np.diff(self.in_indptr) == 0))

    # A scalar read from a memoryview takes a third of the time of one from an array.
    @cached_property
    def _indptr(self) -> memoryview:
        return self.indptr.data

    @cached_property
    def _in_indptr(self) -> memoryview:
        return self.in_indptr.data

    @cached_property
    def _names(self) -> tuple[memoryview, memoryview]:
        return self.name_bytes.data, self.name_offsets.data

    @cached_property
    def _signposts(self) -> list[bytes]:
        """Every SIGNPOST-th name, as what a bisection written in C looks through first."""
        return [self._bytes_of(node) for node in range(0, self.nodes, SIGNPOST)]

    def _bytes_of(self, node: int) -> bytes:
        held, offsets = self._names
        return bytes(held[offsets[node] : offsets[node + 1]])

    def _bisect(self, name: str) -> tuple[int, bool]:
        wanted = name.encode("utf-8", "surrogatepass")  # a lone surrogate is in no name
        first = max(0, bisect_right(self._signposts, wanted) - 1) * SIGNPOST
        after = min(first + SIGNPOST, self.nodes)
        at = first + bisect_left(range(first, after), wanted, key=self._bytes_of)
        return at, at < self.nodes and self._bytes_of(at) == wanted


def row_positions(indptr: NDArray[np.int64], nodes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the edges of several nodes are, one node's after another's, and how many each has."""
    first, after = indptr.take(nodes), indptr.take(nodes + 1)
    counts = after - first
    positions = (after - counts.cumsum()).repeat(counts)
    positions += np.arange(len(positions))
    return positions, counts


def size(column: str, nodes: int, edges: int, name_bytes: int) -> int:
    """How many elements a column has."""
    return {"N": nodes, "N+1": nodes + 1, "E": edges, "B": name_bytes}[COLUMNS[column][1]]


def column_sha(values: NDArray[Any]) -> str:
    return hashlib.sha256(values.data.cast("B") if len(values) else b"").hexdigest()


def content_sha(columns: Mapping[str, str], relations: Iterable[str], kind_names: Iterable[str], licence: str) -> str:
    """SHA-256 over the hashes of all columns and the texts."""
    content = {
        "columns": dict(columns),
        "relations": list(relations),
        "kinds": list(kind_names),
        "licence": licence,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

"""A directed multigraph as sorted arrays: compressed sparse rows in both directions, names, kinds and a content hash.

`N` is the number of nodes, `E` the number of edges, and `B` the number of bytes in all names. Nodes are numbered in the
order of their names (as UTF-8). So the arrays and their hash do not depend on the input order, and a name is found by
bisection, without an index. Two edges with the same relation between the same nodes are one edge.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Length: TypeAlias = Literal["N", "N+1", "E", "B"]

COLUMNS: Final[Mapping[str, tuple[str, Length]]] = {
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
"""The numpy type and the length of each array field of `GraphArrays`. All arrays have one dimension."""

MAX_NODES: Final = 2**24
"""Maximum number of nodes. With 2^15 relations, an edge's two ends and its relation then fit into a 64-bit sort key."""
MAX_EDGES: Final = 2**31 - 1
"""Maximum number of edges. `in_edge` stores edge numbers in 32 bits."""
MAX_RELATIONS: Final = 2**15 - 1
"""Maximum number of relations, and of kinds. Both are numbered with 16 bits."""

Row: TypeAlias = tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.float32]]
"""Views of a node's edges in one direction: nodes at their other ends (ascending), relations, weights."""


@dataclass(frozen=True, eq=False, repr=False)
class GraphArrays:
    """An immutable graph. Its arrays are read-only and may be mapped from files."""

    nodes: int
    indptr: NDArray[np.int64]
    """(N+1,): the edges out of node i are `indptr[i]` to `indptr[i+1]`, sorted by (dst, rel)."""
    dst: NDArray[np.int32]
    """(E,): the node where an edge ends."""
    rel: NDArray[np.int16]
    """(E,): position in `relations`."""
    weight: NDArray[np.float32]
    """(E,): finite, 0 or more."""
    in_indptr: NDArray[np.int64]
    """(N+1,): the edges into node i are `in_indptr[i]` to `in_indptr[i+1]`, sorted by (src, rel)."""
    in_src: NDArray[np.int32]
    in_rel: NDArray[np.int16]
    in_weight: NDArray[np.float32]
    in_edge: NDArray[np.int32]
    """(E,): position of the same edge in `dst`, `rel` and `weight`."""
    name_bytes: NDArray[np.uint8]
    """(B,): all names, concatenated, ascending, in UTF-8."""
    name_offsets: NDArray[np.int64]
    """(N+1,): the name of node i is `name_bytes[name_offsets[i]:name_offsets[i+1]]`."""
    kinds: NDArray[np.int16]
    """(N,): position in `kind_names`."""
    relations: tuple[str, ...]
    kind_names: tuple[str, ...]
    """In ascending order. "" is the kind of a node without one."""
    licence: str
    """The graph's licence, as an SPDX identifier or in words, or an empty string if it is unknown."""
    sha: str
    """SHA-256 of all of the above (`content_sha`), in hexadecimal."""

    @property
    def edges(self) -> int:
        return len(self.dst)

    def __repr__(self) -> str:
        return f"<GraphArrays {self.sha[:12]}: {self.nodes} nodes, {self.edges} edges>"

    def name(self, node: int) -> str:
        """Return a node's name. Raises IndexError if no node has this number."""
        if not 0 <= node < self.nodes:
            raise IndexError(f"there is no node {node}; the graph has {self.nodes}")
        return str(self._bytes_of(node), "utf-8")

    def names(self, nodes: Iterable[int]) -> list[str]:
        return [self.name(int(node)) for node in nodes]

    def index(self, name: str) -> int:
        """Return the number of the node with this name. Raises KeyError if there is none."""
        position, exists = self._bisect(name)
        if not exists:
            raise KeyError(name)
        return position

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._bisect(name)[1]

    def similar_names(self, name: str, count: int = 3) -> list[str]:
        """Return the existing names closest to `name` in sort order, for an error about a missing node."""
        first = max(0, min(self._bisect(name)[0] - count // 2, self.nodes - count))
        return self.names(range(first, min(first + count, self.nodes)))

    def outgoing(self, node: int) -> Row:
        first, last = self.indptr[node : node + 2]
        return self.dst[first:last], self.rel[first:last], self.weight[first:last]

    def incoming(self, node: int) -> Row:
        first, last = self.in_indptr[node : node + 2]
        return self.in_src[first:last], self.in_rel[first:last], self.in_weight[first:last]

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """Return the source node of each edge, (E,). It is computed on first access and takes 4 bytes per edge."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.indptr))

    @property
    def isolated(self) -> int:
        """Return the number of nodes without edges."""
        return int(np.count_nonzero(np.diff(self.indptr) + np.diff(self.in_indptr) == 0))

    @cached_property
    def _names(self) -> tuple[memoryview, memoryview]:
        """Return views of the name arrays. Reading a number is three times as fast from a view as from an array."""
        return self.name_bytes.data, self.name_offsets.data

    def _bytes_of(self, node: int) -> bytes:
        name_bytes, offsets = self._names
        return bytes(name_bytes[offsets[node] : offsets[node + 1]])

    def _bisect(self, name: str) -> tuple[int, bool]:
        """Return the position of the name, or where it would be inserted, and whether it exists."""
        encoded = name.encode("utf-8", "surrogatepass")  # no node's name has a lone surrogate
        position = bisect_left(range(self.nodes), encoded, key=self._bytes_of)
        return position, position < self.nodes and self._bytes_of(position) == encoded


def row_positions(indptr: NDArray[np.int64], nodes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of all edges of some nodes, node by node, and each node's number of edges."""
    first, end = indptr.take(nodes), indptr.take(nodes + 1)
    counts = end - first
    # Count through all edges, and shift the count at each node so that it starts at the node's first edge.
    positions = (end - counts.cumsum()).repeat(counts)
    positions += np.arange(len(positions))
    return positions, counts


def membership(nodes: NDArray[np.int32], members: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return a mask of the nodes that are in `members`. Both arrays are ascending."""
    if not len(members):
        return np.zeros(len(nodes), bool)
    positions = np.searchsorted(members, nodes)
    positions[positions == len(members)] = 0
    return np.asarray(members[positions] == nodes)


def column_sha(values: NDArray[Any]) -> str:
    return hashlib.sha256(values.data.cast("B") if len(values) else b"").hexdigest()


def content_sha(columns: Mapping[str, str], relations: Iterable[str], kind_names: Iterable[str], licence: str) -> str:
    """Return the SHA-256 of the hashes of all columns, the names of relations and kinds, and the licence."""
    content = {"columns": dict(columns), "relations": list(relations), "kinds": list(kind_names), "licence": licence}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

"""Build sorted arrays from a stream of nodes and edges.

Until the edges are sorted, each one is stored as numbers in 14 bytes. A distinct name takes about 150 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.arrays.graph_arrays import (
    COLUMNS,
    MAX_EDGES,
    MAX_NODES,
    MAX_RELATIONS,
    GraphArrays,
    column_sha,
    content_sha,
)

Numbers: TypeAlias = NDArray[np.int32]
"""Numbers of nodes or relations, one per row."""
Weights: TypeAlias = Sequence[float] | NDArray[Any]

MAX_CHARACTERS: Final = 1_000
"""Maximum length of the name of a node, a relation or a kind."""


class RowError(ConfigError):
    """An unusable row. The message gives only the reason, because the loader knows the file and the line."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        """Position in the batch, from 0."""


class Builder:
    """Collects nodes and edges in any order. An edge's nodes need not be declared. A repeated edge is stored once, with
    its largest weight, but every repetition counts towards `max_edges`."""

    def __init__(self, *, max_nodes: int = MAX_NODES, max_edges: int = MAX_EDGES) -> None:
        self._max_nodes, self._max_edges = min(max_nodes, MAX_NODES), min(max_edges, MAX_EDGES)
        self.repeated = 0
        """Number of repeated edges, available after `finish`."""
        self._reset()

    def _reset(self) -> None:
        self._nodes = _Numbering("node", self._max_nodes)
        self._relations = _Numbering("relation", MAX_RELATIONS)
        self._kinds = _Numbering("kind", MAX_RELATIONS, allow_empty=True)
        self._kind_of_node = array("h")
        """The number of each node's kind, or −1 for a node without a kind."""
        self._src, self._dst, self._rel, self._weight = array("i"), array("i"), array("h"), array("f")

    @property
    def edge_count(self) -> int:
        """The number of edges so far, including repeated ones."""
        return len(self._src)

    def declare(self, names: Sequence[str], kinds: Sequence[str] | None = None) -> None:
        """Declare a batch of nodes. Raises RowError for an unusable name, or if a node already has another kind."""
        numbers = self._nodes.numbers(names)
        self._kind_of_node.extend([-1] * (len(self._nodes) - len(self._kind_of_node)))
        if kinds is None:
            return
        for row, (node, kind) in enumerate(zip(numbers.tolist(), self._kinds.numbers(kinds).tolist(), strict=True)):
            earlier_kind = self._kind_of_node[node]
            if not kinds[row] or earlier_kind == kind:
                continue
            if earlier_kind >= 0:
                earlier_name, node_name = list(self._kinds)[earlier_kind], names[row][:60]
                problem = f"the node {node_name!r} is a {earlier_name!r} and a {kinds[row]!r}; give it one kind"
                raise RowError(row, problem)
            self._kind_of_node[node] = kind

    def add_edges(
        self, sources: Sequence[str], relations: Sequence[str], targets: Sequence[str], weights: Weights | None = None
    ) -> None:
        """Add a batch of edges. Without `weights`, every edge has weight 1."""
        self.add_numbered_edges(
            self.node_numbers(sources), self.relation_numbers(relations), self.node_numbers(targets), weights
        )

    def node_numbers(self, names: Iterable[str]) -> Numbers:
        """Return provisional numbers for `add_numbered_edges`, for a loader that passes each distinct name once."""
        return self._nodes.numbers(names)

    def relation_numbers(self, relations: Iterable[str]) -> Numbers:
        """Return the numbers of relations, in the same way as `node_numbers`."""
        return self._relations.numbers(relations)

    def add_numbered_edges(
        self, sources: Numbers, relations: Numbers, targets: Numbers, weights: Weights | None = None
    ) -> None:
        """Add edges by numbers from `node_numbers` and `relation_numbers` instead of names."""
        count = len(sources)
        if not count == len(relations) == len(targets) or (weights is not None and len(weights) != count):
            raise ValueError("the columns of a batch of edges differ in length")
        weight_column = np.ones(count, np.float32) if weights is None else validate_weights(weights)
        if (remaining := self._max_edges - len(self._src)) < count:
            raise RowError(remaining, f"more than {self._max_edges} edges; import only some of them")
        self._src.frombytes(sources.astype(np.int32, copy=False).tobytes())
        self._dst.frombytes(targets.astype(np.int32, copy=False).tobytes())
        self._rel.frombytes(relations.astype(np.int16).tobytes())
        self._weight.frombytes(weight_column.tobytes())

    def finish(self, *, licence: str = "") -> GraphArrays:
        """Build the graph and empty the builder."""
        self._kind_of_node.extend([-1] * (len(self._nodes) - len(self._kind_of_node)))
        names, node_positions = self._nodes.sorted_strings()
        relations, relation_positions = self._relations.sorted_strings()
        kinds, kind_positions = self._kinds.sorted_strings(extra="")
        src, dst = (node_positions[np.frombuffer(column, np.int32)] for column in (self._src, self._dst))
        rel = relation_positions[np.frombuffer(self._rel, np.int16)].astype(np.int16)
        weight = np.frombuffer(self._weight, np.float32)
        kind_of_node, no_kind = np.frombuffer(self._kind_of_node, np.int16), kinds.index("")
        kind = np.empty(len(names), np.int16)
        kind_or_none = kind_positions[kind_of_node] if len(kind_positions) else no_kind
        kind[node_positions] = np.where(kind_of_node < 0, no_kind, kind_or_none)
        added_count = len(weight)
        columns = _sort_edges(src, dst, rel, weight, len(names), len(relations))
        del src, dst, rel, weight, kind_of_node
        self._reset()  # frees the buffers before the reverse direction is built
        self.repeated = added_count - len(columns["dst"])
        columns |= _reverse_edges(columns, len(names)) | _concatenate_names(names) | {"kinds": kind}
        return _freeze(columns, tuple(relations), tuple(kinds), licence)


def validate_weights(values: Weights) -> NDArray[np.float32]:
    """Return the weights as float32. Raises RowError for the first unusable one."""
    with np.errstate(over="ignore"):
        weights = np.asarray(values, np.float64).astype(np.float32)
    is_usable = np.isfinite(weights) & (weights >= 0)
    if not is_usable.all():
        row = int(np.argmin(is_usable))
        raise RowError(row, f"the weight {float(values[row])!r} is not usable; write a number from 0 to 3e38")
    return weights


class _Numbering(dict[str, int]):
    """A mapping from strings to numbers, in order of first appearance."""

    def __init__(self, noun: str, limit: int, *, allow_empty: bool = False) -> None:
        super().__init__()
        self._noun, self._limit, self._allow_empty = noun, limit, allow_empty

    def numbers(self, strings: Iterable[str]) -> Numbers:
        """Return the number of each string. Raises RowError for the first unusable one."""
        numbers = array("i")
        for row, text in enumerate(strings):
            number = self.get(text) if isinstance(text, str) else None
            if number is None:
                if problem := self._find_problem(text):
                    raise RowError(row, problem)
                self[text] = number = len(self)
            numbers.append(number)
        return np.frombuffer(numbers, np.int32)

    def sorted_strings(self, extra: str | None = None) -> tuple[list[str], Numbers]:
        """Return all strings in order, including `extra`, and for each number the position of its string."""
        strings = sorted(self if extra is None else {*self, extra})
        positions = np.empty(len(self), np.int32)
        for position, text in enumerate(strings):
            if (number := self.get(text)) is not None:
                positions[number] = position
        return strings, positions

    def _find_problem(self, text: object) -> str:
        """Return why a value is unusable, or an empty string if it is valid."""
        if not isinstance(text, str):
            return f"{text!r:.60} is not a {self._noun}; it must be a string"
        if not text and not self._allow_empty:
            return f"a {self._noun} without a name"
        if len(text) > MAX_CHARACTERS:
            return f"the {self._noun} {text[:40]!r}… has {len(text)} characters; the limit is {MAX_CHARACTERS}"
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            return f"the {self._noun} {text[:40]!r} is not valid Unicode"
        return f"more than {self._limit} {self._noun}s; import fewer" if len(self) >= self._limit else ""


def _sort_edges(
    src: Numbers, dst: Numbers, rel: NDArray[np.int16], weight: NDArray[np.float32], nodes: int, relations: int
) -> dict[str, NDArray[Any]]:
    """Return the edges sorted by (src, dst, rel), without duplicates and with the largest weight of each."""
    key = (src.astype(np.uint64) * np.uint64(nodes) + dst.astype(np.uint64)) * np.uint64(max(1, relations))
    key += rel.astype(np.uint64)
    order = np.argsort(key)
    key = key[order]
    first_rows = np.flatnonzero(np.concatenate([np.ones(min(1, len(key)), bool), key[1:] != key[:-1]]))
    del key
    largest_weights = np.maximum.reduceat(weight[order], first_rows) if len(first_rows) else weight.copy()
    order = order[first_rows]
    return {"indptr": _row_offsets(src[order], nodes), "dst": dst[order], "rel": rel[order], "weight": largest_weights}


def _reverse_edges(forward: dict[str, NDArray[Any]], nodes: int) -> dict[str, NDArray[Any]]:
    """Return the same edges sorted by (dst, src, rel). A stable sort by dst is enough."""
    order = np.argsort(forward["dst"], kind="stable").astype(np.int32)
    sources = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(forward["indptr"]))
    return {
        "in_indptr": _row_offsets(forward["dst"], nodes),
        "in_src": sources[order],
        "in_rel": forward["rel"][order],
        "in_weight": forward["weight"][order],
        "in_edge": order,
    }


def _row_offsets(row_of_edge: Numbers, nodes: int) -> NDArray[np.int64]:
    """Return the position of each row's first edge, and the number of edges at the end, (N+1,)."""
    counts = np.bincount(row_of_edge, minlength=nodes)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _concatenate_names(names: Sequence[str]) -> dict[str, NDArray[Any]]:
    encoded = [name.encode() for name in names]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return {"name_bytes": np.frombuffer(b"".join(encoded), np.uint8), "name_offsets": offsets}


def _freeze(
    columns: dict[str, NDArray[Any]], relations: tuple[str, ...], kinds: tuple[str, ...], licence: str
) -> GraphArrays:
    frozen = {name: np.ascontiguousarray(columns[name], np.dtype(dtype)) for name, (dtype, _) in COLUMNS.items()}
    for values in frozen.values():
        values.flags.writeable = False
    hashes = {name: column_sha(values) for name, values in frozen.items()}
    sha = content_sha(hashes, relations, kinds, licence)
    nodes = len(frozen["kinds"])
    return GraphArrays(nodes=nodes, relations=relations, kind_names=kinds, licence=licence, sha=sha, **frozen)

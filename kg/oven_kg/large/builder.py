"""Sorted arrays out of a stream of nodes and edges, of which nothing but numbers is kept.

An edge takes 14 bytes until it is sorted, and a distinct name some 150 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_kg.large.arrays import COLUMNS, EDGES, NODES, RELATIONS, Arrays, column_sha, content_sha

TEXT: Final = 1_000
"""The most characters of a name, a relation or a kind."""


class RowError(ConfigError):
    """A row of a batch is not usable. The message says what is wrong with it, and not where it is: the loader knows
    the file and the line of `row`."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row
        """Position in the batch, from 0."""

    def __reduce__(self) -> tuple[type[RowError], tuple[int, str]]:
        return type(self), (self.row, str(self))


class Builder:
    """Takes nodes and edges in any order; a node of an edge need not be declared. An edge that comes several times
    counts once, with the largest of its weights.

    `nodes` and `edges`: the most that are taken, repeated edges included.
    """

    def __init__(self, *, nodes: int = NODES, edges: int = EDGES) -> None:
        self._most_nodes, self._most_edges = min(nodes, NODES), min(edges, EDGES)
        self.repeated = 0
        """Edges that were there already; known after `finish`."""
        self._clear()

    def _clear(self) -> None:
        self._nodes = _Numbers("node", self._most_nodes)
        self._relations = _Numbers("relation", RELATIONS)
        self._kinds = _Numbers("kind", RELATIONS, empty=True)
        self._kind_of = array("h")
        self._src, self._dst, self._rel, self._weight = array("i"), array("i"), array("h"), array("f")

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    @property
    def edges_taken(self) -> int:
        return len(self._src)

    def node(self, name: str, kind: str = "") -> bool:
        """Declare a node; False if an edge or an earlier call named it before. Raises RowError for a name that is not
        usable, and for a node that was of another kind."""
        new = name not in self._nodes
        self.declare([name], [kind])
        return new

    def declare(self, names: Sequence[str], kinds: Sequence[str] | None = None) -> None:
        """Declare nodes in a batch. Raises RowError."""
        numbers = self._nodes.of(names)
        self._kind_of.extend([-1] * (len(self._nodes) - len(self._kind_of)))
        if kinds is None:
            return
        for row, (number, kind) in enumerate(zip(numbers.tolist(), self._kinds.of(kinds).tolist(), strict=True)):
            before = self._kind_of[number]
            if not kinds[row] or before == kind:
                continue
            if before >= 0:
                known = self._kinds.texts()[before]
                raise RowError(
                    row, f"the node {names[row][:60]!r} is a {known!r} and a {kinds[row]!r}; give it one kind"
                )
            self._kind_of[number] = kind

    def edges(
        self,
        sources: Sequence[str],
        relations: Sequence[str],
        targets: Sequence[str],
        weights: Sequence[float] | NDArray[Any] | None = None,
    ) -> None:
        """Add a batch of edges, of weight 1 if there are no weights. Raises RowError for the first row that is not
        usable; the batch is not added then."""
        self.numbered_edges(
            self.node_numbers(sources), self.relation_numbers(relations), self.node_numbers(targets), weights
        )

    def node_numbers(self, names: Iterable[str]) -> NDArray[np.int32]:
        """Provisional numbers for `numbered_edges`: for a loader that has each name once, with the rows as positions.
        Raises RowError."""
        return self._nodes.of(names)

    def relation_numbers(self, relations: Iterable[str]) -> NDArray[np.int32]:
        return self._relations.of(relations)

    def numbered_edges(
        self,
        sources: NDArray[np.int32],
        relations: NDArray[np.int32],
        targets: NDArray[np.int32],
        weights: Sequence[float] | NDArray[Any] | None = None,
    ) -> None:
        """As `edges`, with what `node_numbers` and `relation_numbers` gave for the names."""
        count = len(sources)
        if not count == len(relations) == len(targets) or (weights is not None and len(weights) != count):
            raise ValueError("the columns of a batch of edges differ in length")
        held = np.ones(count, np.float32) if weights is None else _weights(weights)
        if len(self._src) + count > self._most_edges:
            raise RowError(
                self._most_edges - len(self._src), f"more than {self._most_edges} edges; give a part of them"
            )
        self._src.frombytes(sources.astype(np.int32, copy=False).tobytes())
        self._dst.frombytes(targets.astype(np.int32, copy=False).tobytes())
        self._rel.frombytes(relations.astype(np.int16).tobytes())
        self._weight.frombytes(held.tobytes())

    def finish(self, *, licence: str = "") -> Arrays:
        """The graph. The builder is empty afterwards."""
        self._kind_of.extend([-1] * (len(self._nodes) - len(self._kind_of)))
        relations, relation_at = self._relations.ascending()
        kinds, kind_at = self._kinds.ascending(always="")
        unsaid, held = kinds.index(""), np.frombuffer(self._kind_of, np.int16)
        names, node_at = self._nodes.ascending()
        src, dst = (node_at[np.frombuffer(column, np.int32)] for column in (self._src, self._dst))
        rel = relation_at[np.frombuffer(self._rel, np.int16)].astype(np.int16)
        weight = np.frombuffer(self._weight, np.float32)
        kind = np.empty(len(names), np.int16)
        kind[node_at] = np.where(held < 0, unsaid, kind_at[held] if len(kind_at) else unsaid)
        total = len(weight)
        columns = _forward(src, dst, rel, weight, len(names), len(relations))
        del src, dst, rel, weight, held
        self._clear()  # its buffers go before the reverse direction is made
        self.repeated = total - len(columns["dst"])
        columns |= _reverse(columns, len(names)) | _joined(names) | {"kinds": kind}
        return _frozen(columns, tuple(relations), tuple(kinds), licence)


def _weights(values: Sequence[float] | NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        held = np.asarray(values, np.float64).astype(np.float32)
    usable = np.isfinite(held) & (held >= 0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise RowError(row, f"the weight {float(values[row])!r} is not usable; a weight is a number from 0 to 3e38")
    return held


class _Numbers(dict[str, int]):
    """Text → number, in the order of their coming."""

    def __init__(self, what: str, most: int, *, empty: bool = False) -> None:
        super().__init__()
        self._what, self._most, self._empty = what, most, empty

    def __missing__(self, text: str) -> int:
        if problem := self._problem(text):
            raise _UnusableError(problem)
        self[text] = number = len(self)
        return number

    def of(self, texts: Iterable[str]) -> NDArray[np.int32]:
        texts = texts if isinstance(texts, Sequence) else list(texts)
        get: Callable[[str], int] = self.__getitem__
        try:
            return np.fromiter(map(get, texts), np.int32, len(texts))
        except (_UnusableError, TypeError):
            row, problem = next((row, found) for row, text in enumerate(texts) if (found := self._problem(text)))
            raise RowError(row, problem) from None

    def texts(self) -> list[str]:
        return list(self)

    def ascending(self, always: str | None = None) -> tuple[list[str], NDArray[np.int32]]:
        """All texts in order, `always` among them, and a number's place there."""
        texts = sorted(self if always is None else {*self, always})
        places = np.empty(len(self), np.int32)
        for place, text in enumerate(texts):
            if (number := self.get(text)) is not None:
                places[number] = place
        return texts, places

    def _problem(self, text: object) -> str:
        if not isinstance(text, str):
            return f"{text!r:.60} is not a {self._what}; it has to be a text"
        if text in self or (not text and self._empty):
            return f"more than {self._most} {self._what}s; give a part of the graph" if len(self) > self._most else ""
        if not text:
            return f"a {self._what} without a name"
        if len(text) > TEXT:
            return f"the {self._what} {text[:40]!r}… has {len(text)} characters; at most {TEXT} are read"
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            return f"the {self._what} {text[:40]!r} is not valid Unicode"
        return f"more than {self._most} {self._what}s; give a part of the graph" if len(self) >= self._most else ""


class _UnusableError(ValueError):
    pass


def _forward(
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    rel: NDArray[np.int16],
    weight: NDArray[np.float32],
    nodes: int,
    relations: int,
) -> dict[str, NDArray[Any]]:
    """Edges sorted by (src, dst, rel), each once, with the largest of its weights."""
    key = (src.astype(np.uint64) * np.uint64(nodes) + dst.astype(np.uint64)) * np.uint64(max(1, relations))
    key += rel.astype(np.uint64)
    order = np.argsort(key)
    key = key[order]
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(key)), bool), key[1:] != key[:-1]]))
    del key
    heaviest = np.maximum.reduceat(weight[order], first) if len(first) else weight.copy()
    order = order[first]
    counts = np.bincount(src[order], minlength=nodes)
    return {
        "indptr": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        "dst": dst[order],
        "rel": rel[order],
        "weight": heaviest,
    }


def _reverse(forward: dict[str, NDArray[Any]], nodes: int) -> dict[str, NDArray[Any]]:
    """The same edges sorted by (dst, src, rel): a stable sort by `dst` of what is sorted by the rest."""
    order = np.argsort(forward["dst"], kind="stable").astype(np.int32)
    counts = np.bincount(forward["dst"], minlength=nodes)
    sources = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(forward["indptr"]))
    return {
        "in_indptr": np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)]),
        "in_src": sources[order],
        "in_rel": forward["rel"][order],
        "in_weight": forward["weight"][order],
        "in_edge": order,
    }


def _joined(names: Sequence[str]) -> dict[str, NDArray[Any]]:
    held = [name.encode() for name in names]
    offsets = np.zeros(len(held) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, held), np.int64, len(held)), out=offsets[1:])
    return {"name_bytes": np.frombuffer(b"".join(held), np.uint8), "name_offsets": offsets}


def _frozen(
    columns: dict[str, NDArray[Any]], relations: tuple[str, ...], kinds: tuple[str, ...], licence: str
) -> Arrays:
    held = {name: np.ascontiguousarray(columns[name], np.dtype(kind)) for name, (kind, _) in COLUMNS.items()}
    for values in held.values():
        values.flags.writeable = False
    hashes = {name: column_sha(values) for name, values in held.items()}
    sha = content_sha(hashes, relations, kinds, licence)
    nodes = len(held["kinds"])
    return Arrays(nodes=nodes, relations=relations, kind_names=kinds, licence=licence, sha=sha, **held)

"""The dicts inside a networkx graph as mappings that read arrays: an entry is made when it is asked for."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator, Mapping, ValuesView
from itertools import pairwise
from typing import Final, NoReturn, TypeVar

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from oven_kg.large.arrays import Arrays
from oven_kg.large.networkx.csr import Integers
from oven_kg.large.networkx.names import Names

READ_ONLY: Final = "this graph is read-only, since its edges are arrays in a folder; change a copy: graph.copy()"

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReadOnly(dict[K, V]):
    """A dict that refuses changes: nothing would come of them. Copies are plain dicts."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise nx.NetworkXError(READ_ONLY)

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def copy(self) -> dict[K, V]:
        """A dict that can be changed."""
        return dict(self)

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return dict, (dict(self),)


class _Lazy(Mapping[str, V]):
    """A mapping that gives its items without looking up each key again."""

    def pairs(self) -> Iterator[tuple[str, V]]:
        """Keys and values, made one after another."""
        raise NotImplementedError

    def items(self) -> ItemsView[str, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def copy(self) -> dict[str, V]:
        """The same as a dict, as networkx's views expect of what they stand on."""
        return dict(self.items())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


class _Items(ItemsView[str, V]):
    _mapping: _Lazy[V]

    def __iter__(self) -> Iterator[tuple[str, V]]:
        return self._mapping.pairs()


class _Values(ValuesView[V]):
    _mapping: _Lazy[V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.pairs())


class NodeData(_Lazy[ReadOnly[str, str]]):
    """`_node` of a graph: name → its attributes, of which there is one, `kind`."""

    def __init__(self, arrays: Arrays, names: Names) -> None:
        self._arrays, self._names = arrays, names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, node: object) -> bool:
        return node in self._names

    def __getitem__(self, node: str) -> ReadOnly[str, str]:
        return self._of(int(self._arrays.kinds[self._names.index(node)]))

    def _of(self, kind: int) -> ReadOnly[str, str]:
        return ReadOnly(kind=self._arrays.kind_names[kind])

    def pairs(self) -> Iterator[tuple[str, ReadOnly[str, str]]]:
        return ((name, self._of(int(kind))) for name, kind in zip(self._names, self._arrays.kinds, strict=True))


Parallel = ReadOnly[str, ReadOnly[str, float]]
"""The edges from one node to another: relation → attributes, of which there is one, `weight`."""


class Neighbours(_Lazy[Parallel]):
    """One row of `_adj` or `_pred`: neighbour → the edges to it, or from it."""

    def __init__(
        self,
        names: Names,
        relations: tuple[str, ...],
        ends: NDArray[np.int32],
        relation: NDArray[np.int16],
        weight: NDArray[np.float32],
    ) -> None:
        self._names, self._relations = names, relations
        self._ends, self._relation, self._weight = ends, relation, weight

    def _starts(self) -> Integers:
        """Where in the row each neighbour's edges begin, and the row's end."""
        ends = self._ends
        return np.concatenate([[0][: len(ends)], np.flatnonzero(ends[1:] != ends[:-1]) + 1, [len(ends)]]).astype(int)

    def __len__(self) -> int:
        return len(self._ends) and 1 + int(np.count_nonzero(self._ends[1:] != self._ends[:-1]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names.decode(self._ends[self._starts()[:-1]]))

    def __contains__(self, node: object) -> bool:
        found = self._names.find(node)
        if found is None:
            return False
        at = int(self._ends.searchsorted(found))
        return at < len(self._ends) and int(self._ends[at]) == found

    def __getitem__(self, node: str) -> Parallel:
        found = self._names.index(node)
        first, last = self._ends.searchsorted(found), self._ends.searchsorted(found, "right")
        if first == last:
            raise KeyError(node)
        return self._between(self._relation[first:last].tolist(), self._weight[first:last].tolist())

    def _between(self, relations: list[int], weights: list[float]) -> Parallel:
        names = self._relations
        return ReadOnly({names[at]: ReadOnly(weight=weight) for at, weight in zip(relations, weights, strict=True)})

    def pairs(self) -> Iterator[tuple[str, Parallel]]:
        starts = self._starts()
        relations, weights, bounds = self._relation.tolist(), self._weight.tolist(), starts.tolist()
        for name, (first, last) in zip(self._names.decode(self._ends[starts[:-1]]), pairwise(bounds), strict=True):
            yield name, self._between(relations[first:last], weights[first:last])


class Adjacency(_Lazy[Neighbours]):
    """`_adj` of a graph, or `_pred`: name → its row."""

    def __init__(self, arrays: Arrays, names: Names, *, backwards: bool) -> None:
        self._arrays, self._names, self._backwards = arrays, names, backwards

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, node: object) -> bool:
        return node in self._names

    def __getitem__(self, node: str) -> Neighbours:
        return self._row(self._names.index(node))

    def _row(self, at: int) -> Neighbours:
        return Neighbours(
            self._names, self._arrays.relations, *(self._arrays.into(at) if self._backwards else self._arrays.out(at))
        )

    def pairs(self) -> Iterator[tuple[str, Neighbours]]:
        return ((name, self._row(at)) for at, name in enumerate(self._names))

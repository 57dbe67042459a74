"""A large graph as a read-only networkx graph: every function of networkx takes it, and no edge is an object.

What follows rests on networkx's own attributes `_node`, `_adj`, `_succ` and `_pred`, for which its minor version is
bounded.
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn

import networkx as nx
import numpy as np

from oven_core.errors import ConfigError
from oven_kg.large.arrays import Arrays
from oven_kg.large.folder import open_folder
from oven_kg.large.networkx.csr import Csr, Integers, Numbers, Rows
from oven_kg.large.networkx.degree_views import DegreeView, InDegreeView, OutDegreeView
from oven_kg.large.networkx.mappings import READ_ONLY, Adjacency, NodeData
from oven_kg.large.networkx.names import Names

BACKENDS: Final = ("networkx", "oven_csr")


class LargeGraph(nx.MultiDiGraph):  # type: ignore[misc]
    """`Arrays` as a directed multigraph: a node is a name with its `kind`, an edge's key its relation, and its one
    attribute `weight`. Nodes, and a node's neighbours, come in the order of the arrays.

    `backend`: "networkx" lets every function of networkx run on it, and those of the backend `oven_csr` by
    `backend="oven_csr"`; "oven_csr" lets those run without being named, and all others raise NotImplementedError.
    Nothing is copied for either. Copies and subgraphs are graphs of networkx's own.
    """

    def __new__(cls, arrays: Arrays | None = None, *, backend: str = "networkx") -> Any:
        """Without arrays an empty graph of networkx's own: `graph.__class__()` is how networkx begins a copy or a view
        of a graph."""
        return nx.MultiDiGraph() if arrays is None else object.__new__(cls)

    def __init__(self, arrays: Arrays, *, backend: str = "networkx") -> None:
        if backend not in BACKENDS:
            raise ConfigError(f"no backend {backend!r} for a large graph; name one of {', '.join(BACKENDS)}")
        self.arrays = arrays
        self.graph = {"sha": arrays.sha, "licence": arrays.licence}
        self.frozen = True  # what networkx.is_frozen looks at
        self.__networkx_backend__ = backend
        self.__networkx_cache__ = None  # nothing is converted, so nothing is kept
        self._names = Names(arrays)
        self._node = NodeData(arrays, self._names)
        self._adj = Adjacency(arrays, self._names, backwards=False)
        self._pred = Adjacency(arrays, self._names, backwards=True)

    @classmethod
    def open(cls, folder: str | Path, *, backend: str = "networkx") -> LargeGraph:
        """The graph in a folder that `kg import` wrote. Raises ConfigError for one that is not sound."""
        graph: LargeGraph = cls(open_folder(Path(folder)), backend=backend)
        return graph

    def with_backend(self, backend: str) -> LargeGraph:
        """The same arrays for the other backend; itself if it has that one."""
        if backend == self.__networkx_backend__:
            return self
        twin: LargeGraph = type(self)(self.arrays, backend=backend)
        twin.graph, twin.csr = self.graph, self.csr
        return twin

    @cached_property
    def csr(self) -> Csr:
        """What the backend's functions compute with: views of the arrays."""
        arrays = self.arrays

        def values(attribute: Hashable) -> Numbers:
            return arrays.weight.astype(np.float64) if attribute == "weight" else np.ones(arrays.edges, np.int64)

        out, into = Rows(arrays.indptr, arrays.dst), Rows(arrays.in_indptr, arrays.in_src)
        return Csr(self._names, out, into, arrays.in_edge, directed=True, values=values)

    @cached_property
    def degree(self) -> DegreeView:
        """As networkx's, counted from the arrays' offsets."""
        return DegreeView(self)

    @cached_property
    def in_degree(self) -> InDegreeView:
        """As networkx's, counted from the arrays' offsets."""
        return InDegreeView(self)

    @cached_property
    def out_degree(self) -> OutDegreeView:
        """As networkx's, counted from the arrays' offsets."""
        return OutDegreeView(self)

    def size(self, weight: Hashable = None) -> Any:
        """The number of edges, or the sum of their `weight`."""
        if weight is None:
            return self.arrays.edges
        return float(self.csr.values(weight).sum())

    def subgraph(self, nodes: Any) -> Any:
        """The graph between `nodes`, read-only: as in networkx, but of up to half the nodes it is a copy, since its
        view would try each of them against each row."""
        known = [at for node in self.nbunch_iter(nodes) if (at := self._names.find(node)) is not None]
        if 2 * len(known) >= len(self):
            return super().subgraph(nodes)
        return nx.freeze(self.part(np.array(known, np.int64)))

    def part(self, nodes: Integers) -> nx.MultiDiGraph:
        """A graph of networkx's own, which can be changed, of the nodes with these numbers and the edges between
        them."""
        arrays, wanted = self.arrays, np.unique(nodes)
        inside = np.zeros(arrays.nodes, bool)
        inside[wanted] = True
        names = dict(zip(wanted.tolist(), self._names.decode(wanted), strict=True))
        made = nx.MultiDiGraph()
        made.graph.update(self.graph)
        made.add_nodes_from((name, {"kind": arrays.kind_names[int(arrays.kinds[at])]}) for at, name in names.items())
        for at, name in names.items():
            ends, relations, weights = (column[inside[arrays.out(at)[0]]].tolist() for column in arrays.out(at))
            made.add_edges_from(
                (name, names[end], arrays.relations[relation], {"weight": weight})
                for end, relation, weight in zip(ends, relations, weights, strict=True)
            )
        return made

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise nx.NetworkXError(READ_ONLY)

    add_node = add_nodes_from = remove_node = remove_nodes_from = _refuse
    add_edge = add_edges_from = add_weighted_edges_from = remove_edge = remove_edges_from = _refuse
    update = clear = clear_edges = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (replace(self.arrays), self.__networkx_backend__, self.graph)  # without what the arrays keep

    def __deepcopy__(self, memo: dict[int, Any]) -> LargeGraph:
        return _again(self.arrays, self.__networkx_backend__, deepcopy(self.graph, memo))


def _again(arrays: Arrays, backend: str, attributes: dict[str, Any]) -> LargeGraph:
    graph: LargeGraph = LargeGraph(arrays, backend=backend)
    graph.graph = attributes
    return graph

"""Degrees out of the arrays' offsets; networkx's views would make every row of the graph to count it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import networkx as nx
import numpy as np


class _Counted(nx.reportviews.DiDegreeView):  # type: ignore[misc]
    """`_weighted` is the class of networkx's that sums an attribute over the rows, edge by edge, in its order."""

    _weighted: ClassVar[Any]
    _parts: ClassVar[tuple[str, ...]]

    def _offsets(self) -> list[Any]:
        return [getattr(self._graph.arrays, part) for part in self._parts]

    def __getitem__(self, node: str) -> Any:
        if self._weight is not None:
            return self._weighted.__getitem__(self, node)
        at = self._graph.csr.labels.index(node)
        return sum(int(offsets[at + 1] - offsets[at]) for offsets in self._offsets())

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        if self._weight is not None:
            return iter(self._weighted.__iter__(self))
        if self._nodes is not self._succ:
            return ((node, self[node]) for node in self._nodes)
        counts = sum(np.diff(offsets) for offsets in self._offsets())
        return zip(self._nodes, counts.tolist() if len(self) else (), strict=True)


class DegreeView(_Counted):
    """Edges in and out of each node."""

    _weighted = nx.reportviews.DiMultiDegreeView
    _parts = ("indptr", "in_indptr")


class InDegreeView(_Counted):
    """Edges into each node."""

    _weighted = nx.reportviews.InMultiDegreeView
    _parts = ("in_indptr",)


class OutDegreeView(_Counted):
    """Edges out of each node."""

    _weighted = nx.reportviews.OutMultiDegreeView
    _parts = ("indptr",)

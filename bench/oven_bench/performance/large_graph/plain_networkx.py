"""Plain networkx on the graph, each measurement in a new process: loading, PageRank, what is two edges away.

A pickle is how it loads fastest. What is two edges away is asked of `single_source_shortest_path_length`, which says
how far each node is, as ours does, and of the fastest loop over successors, which does not; `ego_graph` copies, and
takes 20 times as long as either.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import psutil

from oven_bench.performance.large_graph.quickest_calls import quickest
from oven_kg.arrays.folder import open_folder
from oven_kg.arrays.random_walk import DAMPING


@dataclass(frozen=True, slots=True)
class Plain:
    load_s: float
    load_without_gc_s: float
    memory_bytes: int
    pagerank_s: float
    hop2_us: list[float]
    """By networkx's function, the quickest of ROUNDS for each node."""
    hop2_loop_us: list[float]
    hop2_sizes: list[int]


def pickled(folder: Path, target: Path) -> None:
    """The graph in the folder as a pickled MultiDiGraph: names as nodes, relations as keys, `weight` on the edges."""
    arrays = open_folder(folder)
    names = arrays.names(range(arrays.nodes))
    graph: Any = nx.MultiDiGraph()
    with _without_collection():  # it looks at all edges so far again and again, and finds nothing
        graph.add_nodes_from(names)
        columns = (arrays.sources, arrays.dst, arrays.rel, arrays.weight)
        for src, dst, rel, weight in zip(*(column.tolist() for column in columns), strict=True):
            graph.add_edge(names[src], names[dst], key=arrays.relations[rel], weight=weight)
        with target.open("wb") as file:
            pickle.dump(graph, file, protocol=5)


def load_seconds_without_collection(path: Path) -> float:
    """CPU seconds of loading it with Python's garbage collector off."""
    with _without_collection():
        return _load(path)[1]


def _load(path: Path) -> tuple[Any, float]:
    began = time.process_time()
    with path.open("rb") as file:
        graph = pickle.load(file)
    return graph, time.process_time() - began


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(path: Path, nodes: list[str], accuracy: float, exact: float, ranks: Path, without_gc_s: float) -> Plain:
    """Write the ranks to an accuracy of `exact`, in the order of the nodes, to the file `ranks`."""
    process = psutil.Process()
    before = process.memory_info().rss
    graph, load_s = _load(path)
    gc.collect()
    memory = process.memory_info().rss - before
    lengths = partial(nx.single_source_shortest_path_length, graph, cutoff=2)
    hop2_us, sizes = quickest(nodes, lambda node: len(lengths(node)) - 1)
    hop2_loop_us, _ = quickest(nodes, lambda node: len(_two_edges(graph, node)))
    began = time.process_time()
    _pagerank(graph, accuracy)
    pagerank_s = time.process_time() - began
    np.save(ranks, np.fromiter(_pagerank(graph, exact).values(), np.float64, len(graph)))
    return Plain(load_s, without_gc_s, memory, pagerank_s, hop2_us, hop2_loop_us, sizes)


def _two_edges(graph: Any, node: str) -> set[str]:
    """The nodes one or two edges from `node`, itself left out."""
    successors = graph.successors
    found = set(successors(node))
    for one in list(found):
        found.update(successors(one))
    found.discard(node)
    return found


def _pagerank(graph: Any, accuracy: float) -> dict[str, float]:
    """networkx multiplies `tol` by the number of nodes and stops at what one iteration moved, which is within
    d / (1 − d) of the distance to the true ranks: so it stops where ours does."""
    tol = accuracy * (1 - DAMPING) / DAMPING / len(graph)
    ranks: dict[str, float] = nx.pagerank(graph, alpha=DAMPING, tol=tol, max_iter=1000)
    return ranks

"""The graph in networkx: loading, PageRank, and the nodes within two edges of a node.

Those nodes are found in two ways: by `single_source_shortest_path_length`, which gives each node's distance as the
arrays do, and by the fastest loop over successors, which does not. (`ego_graph` takes 20 times as long as either.)
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

from oven_bench.performance.on_cpu_clock import quickest
from oven_kg.arrays.folder import open_folder
from oven_kg.arrays.random_walk import DAMPING


@dataclass(frozen=True, slots=True)
class Plain:
    load_s: float
    load_without_gc_s: float
    memory_bytes: int
    pagerank_s: float
    hop2_us: list[float]
    """By networkx's function: for each node, the quickest of ROUNDS."""
    hop2_loop_us: list[float]
    hop2_sizes: list[int]


def pickled(folder: Path, target: Path) -> None:
    """Write the folder's graph as a pickled MultiDiGraph: nodes are names, keys are relations, edges have `weight`."""
    arrays = open_folder(folder)
    names = arrays.names(range(arrays.nodes))
    graph: Any = nx.MultiDiGraph()
    with _without_collection():  # it would scan all edges again and again and find nothing
        graph.add_nodes_from(names)
        columns = (arrays.sources, arrays.dst, arrays.rel, arrays.weight)
        for src, dst, rel, weight in zip(*(column.tolist() for column in columns), strict=True):
            graph.add_edge(names[src], names[dst], key=arrays.relations[rel], weight=weight)
        with target.open("wb") as file:
            pickle.dump(graph, file, protocol=5)


def load_seconds_without_collection(path: Path) -> float:
    """CPU seconds to load the pickle with Python's garbage collector off."""
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
    """Measure all, and write the ranks to within `exact`, in the order of the nodes, to the file `ranks`."""
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
    """The nodes one or two edges from `node`, without `node`."""
    successors = graph.successors
    reached = set(successors(node))
    for neighbor in list(reached):
        reached.update(successors(neighbor))
    reached.discard(node)
    return reached


def _pagerank(graph: Any, accuracy: float) -> dict[str, float]:
    """networkx stops when one iteration moves less than `tol` times the number of nodes. The distance to the true
    ranks is at most d / (1 − d) times that move, so it stops where the arrays do."""
    tol = accuracy * (1 - DAMPING) / DAMPING / len(graph)
    ranks: dict[str, float] = nx.pagerank(graph, alpha=DAMPING, tol=tol, max_iter=1000)
    return ranks

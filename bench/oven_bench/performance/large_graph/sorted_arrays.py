"""The graph in the controller's arrays: loading, PageRank, and the nodes within two edges of a node."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from numpy.typing import NDArray

from oven_bench.performance.on_cpu_clock import quickest
from oven_kg.arrays import paths
from oven_kg.arrays.folder import open_folder
from oven_kg.arrays.graph_arrays import COLUMNS
from oven_kg.arrays.random_walk import RandomWalk

FIRST: Final = 20
"""Nodes that each personalized PageRank returns."""
STARTS: Final = 300
COMPARED: Final = 40
"""Starts whose exact personalized PageRank is computed, which takes a third of a second each."""


@dataclass(frozen=True, slots=True)
class Ours:
    load_s: float
    memory_bytes: int
    pagerank_s: float
    pagerank_l1_error: float
    hop2_us: list[float]
    hop2_sizes: list[int]
    ppr_us: list[float]
    ppr_overlaps: list[float]
    """For each compared start, the share of the exact nodes that were found."""


def measure(folder: Path, nodes: list[str], accuracy: float, ranks: Path) -> Ours:
    """`ranks`: a file of networkx's more accurate ranks, in the order of the nodes."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.process_time()
    arrays = open_folder(folder)
    arrays.index(nodes[0])
    load_s = time.process_time() - began
    for name in COLUMNS:
        getattr(arrays, name).max()  # reads all pages into memory
    memory = process.memory_info().rss - before
    hop2_us, sizes = quickest(nodes, lambda node: len(paths.within(arrays, arrays.index(node), 2)[0]))
    began = time.process_time()
    walk = RandomWalk(arrays)
    found_ranks = walk.ranks(accuracy=accuracy)
    pagerank_s = time.process_time() - began
    starts = [arrays.index(node) for node in nodes[:STARTS]]
    walk.near(starts[0], FIRST)  # builds what all starts share
    ppr_us, nearest = quickest(starts, lambda start: walk.near(start, FIRST)[0])
    overlaps = [_overlap(walk, start, near) for start, near in zip(starts[:COMPARED], nearest, strict=False)]
    error = float(np.abs(found_ranks - np.load(ranks, allow_pickle=False)).sum())
    return Ours(load_s, memory, pagerank_s, error, hop2_us, sizes, ppr_us, overlaps)


def _overlap(walk: RandomWalk, start: int, near: NDArray[np.int32]) -> float:
    """The share of the exact first nodes that were found."""
    restart = np.zeros(walk.arrays.nodes)
    restart[start] = 1
    exact = np.argsort(-walk.ranks(restart), kind="stable")[:FIRST]
    return len(set(exact.tolist()) & set(near.tolist())) / len(exact)

"""Our arrays on the same graph and nodes, in a process of their own."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from oven_bench.performance.on_cpu_clock import OnCpu
from oven_kg.large import paths
from oven_kg.large.arrays import COLUMNS, Arrays
from oven_kg.large.folder import open_folder
from oven_kg.large.pagerank import RandomWalk

FIRST: Final = 20
"""Nodes that a personalised PageRank is asked for."""
COMPARED: Final = 40
"""Of its starts, for how many the exact one is worked out."""


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
    """For each compared start, the share of the exact first 20 that were found."""


def measure(folder: Path, nodes: list[str], accuracy: float, ranks: Path) -> Ours:
    """`ranks`: networkx's, to a much higher accuracy, in the order of the nodes."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.process_time()
    arrays = open_folder(folder)
    arrays.index(nodes[0])
    load_s = time.process_time() - began
    for name in COLUMNS:
        getattr(arrays, name).max()  # all of it is in memory now, and counts
    memory = process.memory_info().rss - before
    sizes, hop2_us, ppr_us, overlaps = [], [], [], []
    with OnCpu() as clock:
        for node in nodes:
            found, us = clock.timed(partial(_two_edges, arrays, node))
            hop2_us.append(us)
            sizes.append(len(found))
        began = time.process_time()
        walk = RandomWalk(arrays)
        found_ranks = walk.ranks(accuracy=accuracy)
        pagerank_s = time.process_time() - began
        walk.near([0], FIRST)  # what it makes once for all starts
        for number, node in enumerate(nodes):
            start = arrays.index(node)
            (near, _), us = clock.timed(partial(walk.near, [start], FIRST))
            ppr_us.append(us)
            if number < COMPARED:
                one = np.zeros(arrays.nodes)
                one[start] = 1
                exact = np.argsort(-walk.ranks(one), kind="stable")[:FIRST]
                overlaps.append(len(set(exact.tolist()) & set(near.tolist())) / len(exact))
    error = float(np.abs(found_ranks - np.load(ranks, allow_pickle=False)).sum())
    return Ours(load_s, memory, pagerank_s, error, hop2_us, sizes, ppr_us, overlaps)


def _two_edges(arrays: Arrays, node: str) -> paths.Nodes:
    """The nodes one or two edges from the one of that name, itself left out, as numbers."""
    return paths.within(arrays, arrays.index(node), 2)[0]

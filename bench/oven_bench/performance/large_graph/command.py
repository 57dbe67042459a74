"""`bench kg`: a large graph in the controller's arrays, compared with networkx, and in the prior service over NATS.

The graph is random, from a seed, and has hubs. Each side is measured in a new process, in CPU time; only the round
trips over NATS and the service's start are in wall time. Each side loads its own saved form: networkx a pickle, its
fastest form; the arrays a folder, of which every byte is hashed and checked. Memory is how much the process grew, with
all pages read. Both PageRanks stop at the same bound on the distance to the true ranks, for which networkx's ranks to
1e-12 stand. Both sides search two edges from a node's name and must find equally many nodes.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final

from typer import Option

from oven_bench.intervals import observed_quantile
from oven_bench.performance.large_graph import plain_networkx, prior_service, sorted_arrays
from oven_bench.performance.large_graph.drawn_graph import draw, drawn_nodes
from oven_bench.study import Report, Study, in_new_process
from oven_core.errors import ProcessError
from oven_kg.arrays.folder import write

ACCURACY: Final = 1e-8
"""Both PageRanks stop at this L1 distance to the true ranks."""
EXACT: Final = 1e-12
"""The same for the ranks that stand for the true ones."""
PAGE: Final = 4096
"""The smallest number of bytes by which a process can grow."""
ASKED: Final = 1000
"""Number of nodes that are asked about; the service is asked about a third of them."""


def compare(folder: Path, scratch: Path, queried: list[str]) -> dict[str, float]:
    """The figures of both sides. Raises ProcessError if they find different nodes."""
    saved, ranks = scratch / "graph.pickle", scratch / "ranks.npy"
    in_new_process(plain_networkx.pickled, folder, saved)
    without_gc_s = in_new_process(plain_networkx.load_seconds_without_collection, saved)
    plain = in_new_process(plain_networkx.measure, saved, queried, ACCURACY, EXACT, ranks, without_gc_s)
    ours = in_new_process(sorted_arrays.measure, folder, queried, ACCURACY, ranks)
    if plain.hop2_sizes != ours.hop2_sizes:
        raise ProcessError("networkx and the arrays find different nodes within two edges")
    loop_us, theirs_us, ours_us = (
        observed_quantile(took, 0.99) for took in (plain.hop2_loop_us, plain.hop2_us, ours.hop2_us)
    )
    return {
        "load_ratio": round(plain.load_s / ours.load_s, 1),
        "load_without_gc_ratio": round(plain.load_without_gc_s / ours.load_s, 1),
        "memory_ratio": round(plain.memory_bytes / max(ours.memory_bytes, PAGE), 1),
        "pagerank_ratio": round(plain.pagerank_s / ours.pagerank_s, 1),
        "pagerank_l1_error": float(f"{ours.pagerank_l1_error:.2g}"),
        "hop2_p99_ratio": round(theirs_us / ours_us, 2),
        "hop2_loop_p99_ratio": round(loop_us / ours_us, 2),
        "ppr_p99_ms": round(observed_quantile(ours.ppr_us, 0.99) / 1e3, 2),
        "ppr_overlap": round(fmean(ours.ppr_overlaps), 3),
        "ppr_least_overlap": round(min(ours.ppr_overlaps), 3),
        "networkx_load_s": round(plain.load_s, 2),
        "load_s": round(ours.load_s, 3),
        "networkx_mb": round(plain.memory_bytes / 1e6),
        "mb": round(ours.memory_bytes / 1e6),
        "networkx_pagerank_s": round(plain.pagerank_s, 2),
        "pagerank_s": round(ours.pagerank_s, 3),
        "networkx_hop2_p99_us": theirs_us,
        "networkx_hop2_loop_p99_us": loop_us,
        "hop2_p99_us": ours_us,
    }


def serve(folder: Path, scratch: Path, queried: list[str]) -> dict[str, float]:
    """The figures of the prior service."""
    answer = asyncio.run(prior_service.query(folder, queried[: max(2, len(queried) // 3)], scratch))
    every = [ms for took in answer.query_ms.values() for ms in took]
    return {
        "query_p99_ms": observed_quantile(every, 0.99),
        **{f"query_{kind}_p99_ms": observed_quantile(took, 0.99) for kind, took in answer.query_ms.items()},
        "query_cpu_ms": round(answer.cpu_ms, 2),
        "diagnose_p99_us": in_new_process(prior_service.diagnose_p99_us, folder),
        "service_start_s": round(answer.start_s, 2),
        "service_mb": round(answer.memory_bytes / 1e6),
        "token_prior_s": round(answer.scores.took_s, 2),
        "token_prior_cpu_s": round(answer.scores.cpu_s, 2),
        "token_prior_tokens": answer.scores.tokens,
        "token_prior_bytes": answer.scores.size,
    }


def bench(
    nodes: Annotated[int, Option(min=100, max=2**24)] = 500_000,
    edges: Annotated[int, Option(min=100)] = 3_000_000,
    seed: Annotated[int, Option(help="Of the graph and of the nodes asked about.")] = 0,
    quick: Annotated[bool, Option("--quick", help="20,000 nodes and 120,000 edges: seconds.")] = False,
) -> Report:
    if quick:
        nodes, edges = 20_000, 120_000
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = scratch / "graph"
        queried, held = in_new_process(_written, folder, nodes, edges, seed)
        figures: dict[str, Any] = {"nodes": nodes, "edges": held}
        figures |= compare(folder, scratch, queried) | serve(folder, scratch, queried)
    return Report(figures)


def _written(folder: Path, nodes: int, edges: int, seed: int) -> tuple[list[str], int]:
    arrays = draw(nodes, edges, seed)
    write(folder, arrays)
    return drawn_nodes(arrays, ASKED, seed + 1), arrays.edges


STUDY = Study(
    "kg",
    bench,
    "--quick --json",
    "Full size takes some four minutes of a core and 2 GB of memory, most of both networkx's.",
)

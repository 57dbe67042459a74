"""`bench kg`: a large graph in the controller's arrays, compared with networkx, and in the prior service over NATS.

The graph is random, from a seed, and has hubs. Each side is measured in a new process, in CPU time; only the round
trips over NATS and the service's start are in wall time. Each side loads its own saved form: networkx a pickle, its
fastest form; the arrays a folder, of which every byte is hashed and checked. Memory is how much the process grew, with
all pages read. Both PageRanks stop at the same bound on the distance to the true ranks, for which networkx's ranks to
1e-12 stand. Both sides search two edges from a node's name and must find equally many nodes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeVar

import click
import networkx as nx
import numpy as np
import psutil

from oven_bench.intervals import observed_quantile
from oven_bench.performance.on_cpu_clock import OnCpu
from oven_bench.study import Report, Study
from oven_bench.worker_processes import in_new_process
from oven_controller.stack.process_plan import Plan
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ProcessError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import DiagnoseRequest, GraphInfoRequest, GraphQuery, Symptom
from oven_core.security.credentials import Credentials
from oven_kg.arrays import paths
from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_arrays import COLUMNS, GraphArrays
from oven_kg.arrays.graph_folder import open_folder, write
from oven_kg.arrays.random_walk import DAMPING, RandomWalk
from oven_kg.service.endpoints import load_prior_service
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import EmbeddedServer

A = TypeVar("A")
T = TypeVar("T")

RELATIONS: Final = ("CAUSES", "CONTRADICTS", "IS_A", "RELATED_TO", "REQUIRES", "SOLVES", "USED_FOR")
OUT_SKEW: Final = 1.5
"""Edges leave node N × u^1.5, where u is uniform. With 500,000 nodes and 3,000,000 edges, one node has 480 of them."""
IN_SKEW: Final = 3.0
"""They end at N × u³, in another order of the nodes. The largest hub then has 38,000 edges in, like ConceptNet's."""
BATCH: Final = 50_000
QUERIED: Final = 1000
"""Number of nodes that are asked about. The service is asked about a third of them."""
ACCURACY, EXACT = 1e-8, 1e-12
"""L1 distances to the true ranks: of both PageRanks, and of the ranks that stand for the true ones."""
ROUNDS: Final = 3
"""Times that each call is made, with all others in between. The quickest counts, so that the slowest hundredth contains
the cache misses of the calls and not those of other processes."""
FIRST, STARTS, COMPARED = 20, 300, 40
"""Nodes that a personalized PageRank returns; its starts; those with an exact one, a third of a second each."""
QUERIES: Final[dict[str, dict[str, Any]]] = {
    "neighbors": {}, "neighbors_2": {"op": "neighbors", "depth": 2}, "search": {}, "path": {},
    "ppr": {"direction": "out"},
}  # fmt: skip
"""Kind of query → its options."""
START_S: Final = 120.0
SYMPTOMS: Final = ("loss_spike", "grad_norm_spike", "entropy_collapse", "loss_plateau")
DIAGNOSES: Final = 500


def draw(nodes: int, edges: int, seed: int) -> GraphArrays:
    """A graph of all nodes, even those without an edge. Edges that are drawn twice count once."""
    rng = np.random.default_rng(seed)
    node_names = [f"/c/en/concept_{number}" for number in range(nodes)]
    begins, ends = rng.permutation(nodes), rng.permutation(nodes)
    builder = Builder()
    builder.declare(node_names)
    for first in range(0, edges, BATCH):
        count = min(BATCH, edges - first)
        sources = begins[(nodes * rng.random(count) ** OUT_SKEW).astype(np.int64)]
        targets = ends[(nodes * rng.random(count) ** IN_SKEW).astype(np.int64)]
        builder.add_edges(
            [node_names[node] for node in sources],
            [RELATIONS[number] for number in rng.integers(0, len(RELATIONS), count)],
            [node_names[node] for node in targets],
            1 - rng.random(count),  # above 0
        )
    return builder.finish()


def save(folder: Path, pickled: Path, nodes: int, edges: int, seed: int) -> tuple[list[str], int]:
    """Save the graph for both sides. Return the names of different nodes with an edge out, and the number of edges."""
    arrays = draw(nodes, edges, seed)
    write(folder, arrays)
    node_names = arrays.names(range(arrays.nodes))
    graph: Any = nx.MultiDiGraph()
    gc.disable()  # it would scan all edges again and again and find nothing
    graph.add_nodes_from(node_names)
    columns = (arrays.sources, arrays.dst, arrays.rel, arrays.weight)
    for src, dst, rel, weight in zip(*(column.tolist() for column in columns), strict=True):
        graph.add_edge(node_names[src], node_names[dst], key=arrays.relations[rel], weight=weight)
    pickled.write_bytes(pickle.dumps(graph, protocol=5))
    begins = np.flatnonzero(np.diff(arrays.indptr))
    rng = np.random.default_rng(seed + 1)
    return arrays.names(rng.choice(begins, min(QUERIED, len(begins)), replace=False)), arrays.edges


def quickest(arguments: Sequence[A], call: Callable[[A], T]) -> tuple[float, list[T]]:
    """The slowest hundredth of the calls in on-CPU microseconds, and what each call returned."""
    best = [float("inf")] * len(arguments)
    with OnCpu() as clock:
        for _ in range(ROUNDS):
            timed = [clock.timed(partial(call, argument)) for argument in arguments]
            best = [min(us, so_far) for (_, us), so_far in zip(timed, best, strict=True)]
    return observed_quantile(best, 0.99), [result for result, _ in timed]


def measure_networkx(pickled: Path, nodes: list[str], ranks: Path) -> tuple[dict[str, float], list[int]]:
    """The figures, and how many nodes are within two edges of each. The exact ranks go to the file `ranks`."""
    before, began = psutil.Process().memory_info().rss, time.process_time()
    with pickled.open("rb") as file:
        graph = pickle.load(file)
    load_s = time.process_time() - began
    gc.collect()
    memory = psutil.Process().memory_info().rss - before
    lengths = partial(nx.single_source_shortest_path_length, graph, cutoff=2)
    hop2_us, sizes = quickest(nodes, lambda node: len(lengths(node)) - 1)

    def pagerank(accuracy: float) -> dict[str, float]:
        # networkx stops when an iteration moves less than tol × nodes; the distance is at most d / (1 − d) × that
        tol = accuracy * (1 - DAMPING) / DAMPING / len(graph)
        return dict(nx.pagerank(graph, alpha=DAMPING, tol=tol, max_iter=1000))

    began = time.process_time()
    pagerank(ACCURACY)
    pagerank_s = time.process_time() - began
    np.save(ranks, np.fromiter(pagerank(EXACT).values(), np.float64, len(graph)))
    return {"load_s": load_s, "mb": memory / 1e6, "pagerank_s": pagerank_s, "hop2_p99_us": hop2_us}, sizes


def measure_arrays(folder: Path, nodes: list[str], ranks: Path) -> tuple[dict[str, float], list[int]]:
    """The same figures of the arrays, and the error of their ranks."""
    before, began = psutil.Process().memory_info().rss, time.process_time()
    arrays = open_folder(folder)
    arrays.index(nodes[0])
    load_s = time.process_time() - began
    for name in COLUMNS:
        getattr(arrays, name).max()  # reads all pages into memory
    memory = psutil.Process().memory_info().rss - before
    hop2_us, sizes = quickest(nodes, lambda node: len(paths.nodes_within(arrays, arrays.index(node), 2)[0]))
    began = time.process_time()
    walk = RandomWalk(arrays)
    found_ranks = walk.ranks(accuracy=ACCURACY)
    pagerank_s = time.process_time() - began
    starts = [arrays.index(node) for node in nodes[:STARTS]]
    walk.nearest(starts[0], FIRST)  # builds what all starts share
    ppr_us, nearest = quickest(starts, lambda start: walk.nearest(start, FIRST)[0])
    overlaps = []
    for start, near in zip(starts[:COMPARED], nearest, strict=False):
        exact = np.argsort(-walk.ranks(np.eye(1, arrays.nodes, start)[0]), kind="stable")[:FIRST]
        overlaps.append(len(set(exact.tolist()) & set(near.tolist())) / len(exact))
    figures = {"load_s": load_s, "mb": memory / 1e6, "pagerank_s": pagerank_s, "hop2_p99_us": hop2_us}
    error = float(np.abs(found_ranks - np.load(ranks, allow_pickle=False)).sum())
    return figures | {
        "pagerank_l1_error": error, "ppr_p99_ms": ppr_us / 1e3,
        "ppr_overlap": fmean(overlaps), "ppr_least_overlap": min(overlaps),
    }, sizes  # fmt: skip


async def query_service(folder: Path, nodes: list[str], scratch: Path) -> dict[str, float]:
    """Start a server and the prior service as the stack does, and send five kinds of query about each node."""
    run = Home(scratch).create("bench", "bench")
    for role in ("admin", "kg"):
        run.server.add_user(role, role)
    server = await EmbeddedServer.start(run.server, run.logs / "nats-server.log")
    try:
        async with Bus.connect(server.url, Credentials.load(run.server.creds / "admin.nk")) as bus:
            began = time.monotonic()
            child = await Plan(run, server.url, kg_folder=str(folder)).kg().start()
            try:
                await _first_answer(bus, began)
                start_s, took = time.monotonic() - began, dict[str, list[float]]()
                for node, target in pairwise(nodes):
                    for kind, options in QUERIES.items():
                        query = GraphQuery(
                            node=node, **{"op": kind, **options, **({"to": target} if kind == "path" else {})}
                        )
                        took.setdefault(kind, []).append(await _round_trip_ms(bus, query))
                memory = psutil.Process(child.pid).memory_info().rss
            finally:
                await child.end(10.0)
    finally:
        await server.stop()
    latencies = {f"query_{kind}_p99_ms": observed_quantile(ms, 0.99) for kind, ms in took.items()}
    return {"service_start_s": start_s, "service_mb": memory / 1e6, **latencies}


async def _first_answer(bus: Bus, began: float) -> None:
    while True:
        try:
            await bus.request(names.kg("info"), GraphInfoRequest().wire(), timeout_s=START_S)
            return
        except BusError:
            if time.monotonic() - began > START_S:
                raise ProcessError(f"the prior service did not answer within {START_S:g} s") from None
            await asyncio.sleep(0.02)


async def _round_trip_ms(bus: Bus, query: GraphQuery) -> float:
    began = time.perf_counter()
    answer = json.loads(await bus.request(names.kg("query"), query.wire(), timeout_s=START_S))
    took = time.perf_counter() - began
    if query.op == "neighbors" and not answer["rows"]:
        raise ProcessError(f"the prior service found no neighbors of {query.node}, which has some")
    return took * 1e3


def diagnose_p99_us(folder: Path) -> float:
    """On-CPU time of a diagnosis of one to three symptoms, with the large graph loaded."""
    ask, took = load_prior_service(large=folder), []
    with OnCpu() as clock:
        for count in range(DIAGNOSES):
            symptoms = tuple(Symptom(id=id_) for id_ in SYMPTOMS[count % 2 : count % 2 + 1 + count % 3])
            diagnosis, us = clock.timed(partial(ask, "diagnose", DiagnoseRequest(symptoms=symptoms).wire()))
            if not diagnosis or not json.loads(diagnosis)["causes"]:
                raise ProcessError("the diagnosis found no cause of a loss spike")
            took.append(us)
    return observed_quantile(took, 0.99)


@click.option("--nodes", type=click.IntRange(100, 2**24), default=500_000)
@click.option("--edges", type=click.IntRange(min=100), default=3_000_000)
@click.option("--quick", is_flag=True, help="20,000 nodes and 120,000 edges: seconds.")
def bench(nodes: int, edges: int, quick: bool) -> Report:
    if quick:
        nodes, edges = 20_000, 120_000
    with tempfile.TemporaryDirectory() as scratch:
        folder, pickled, ranks = (Path(scratch) / name for name in ("graph", "graph.pickle", "ranks.npy"))
        queried, held = in_new_process(save, folder, pickled, nodes, edges, 0)
        plain, plain_sizes = in_new_process(measure_networkx, pickled, queried, ranks)
        ours, sizes = in_new_process(measure_arrays, folder, queried, ranks)
        if plain_sizes != sizes:
            raise ProcessError("networkx and the arrays find different nodes within two edges")
        service = asyncio.run(query_service(folder, queried[: max(2, len(queried) // 3)], Path(scratch)))
        service["diagnose_p99_us"] = in_new_process(diagnose_p99_us, folder)
    ratios = {f"{name}_ratio": plain[name] / max(ours[name], 1e-9) for name in plain}
    networkx = {f"networkx_{name}": value for name, value in plain.items()}
    figures = {name: float(f"{value:.3g}") for name, value in (ratios | networkx | ours | service).items()}
    return Report({"nodes": nodes, "edges": held, **figures})


STUDY = Study(
    "kg", bench, "--quick --json", "Full size takes some four minutes of a core and 2 GB of memory, most of networkx's."
)

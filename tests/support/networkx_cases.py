"""What the backend `oven_csr` is compared with networkx in, each function called in several ways, and the comparison.

python -m tests.support.networkx_cases --graphs 500
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import islice
from time import process_time
from typing import Any, Final

import networkx as nx
from tests.support.multigraphs import arrays_of, drawn, networkx_of

from oven_kg.large.networkx_view import LargeGraph

Case = tuple[str, tuple[Any, ...], dict[str, Any]]


def cases(nodes: list[str]) -> list[Case]:
    """Calls: function, arguments after the graph, keywords. `nodes`: the graph's."""
    a, b, c = nodes[0], nodes[len(nodes) // 2], nodes[-1]
    one: list[Case] = [(name, (a,), {}) for name in FROM_A_NODE]
    two: list[Case] = [(name, ends, {}) for name in BETWEEN_TWO for ends in ((a, b), (b, c), (a, a))]
    weighted: list[Case] = [
        (name, args, keywords)
        for name, args, keywords in (
            ("shortest_path", (a, c), {"weight": "weight"}),
            ("shortest_path", (a,), {"weight": "weight"}),
            ("shortest_path", (), {"target": b, "weight": "weight"}),
            ("shortest_path", (), {"target": b}),
            ("shortest_path_length", (a, c), {"weight": "weight"}),
            ("shortest_path_length", (b,), {"weight": "weight"}),
            ("shortest_path_length", (), {"target": c, "weight": "weight"}),
            ("shortest_path_length", (), {"target": c}),
            ("single_source_dijkstra", (a,), {}),
            ("single_source_dijkstra", (a, b), {"weight": None}),
            ("single_source_dijkstra", (b,), {"cutoff": 1.5}),
            ("single_source_dijkstra_path", (c,), {}),
            ("single_source_dijkstra_path_length", (c,), {"cutoff": 2}),
            ("single_source_dijkstra_path_length", (a,), {"weight": "missing"}),
            ("multi_source_dijkstra", ([a, b],), {}),
            ("multi_source_dijkstra", ([a, b], c), {}),
            ("multi_source_dijkstra_path", ([b, c],), {}),
            ("multi_source_dijkstra_path_length", ([b, c],), {}),
            ("multi_source_dijkstra_path_length", ([],), {}),
            ("dijkstra_predecessor_and_distance", (a,), {}),
        )
    ]
    if len(nodes) < 8:
        weighted += [(ALL_PATHS, (a,), {"weight": weight}) for weight in (None, "weight")]
        weighted += [("all_shortest_paths", (a, b), {"weight": "weight"})]
    if len(nodes) < 20:
        weighted += [(name, (), {}) for name in PAIRS]
    return [*((name, (), {}) for name in WHOLE), *one, *two, *weighted, *_breadth_first(a, b, c)]


def _breadth_first(a: str, b: str, c: str) -> Iterator[Case]:
    for keywords in ({}, {"depth_limit": 2}, {"reverse": True}, {"sort_neighbors": sorted}):
        yield "bfs_edges", (a,), keywords
    for limit in (0, 1, 3):
        yield "bfs_predecessors", (b,), {"depth_limit": limit}
        yield "descendants_at_distance", (a, limit), {}
        yield "single_source_shortest_path_length", (c,), {"cutoff": limit}
        yield "single_target_shortest_path", (c,), {"cutoff": limit}
        yield "ego_graph", (b,), {"radius": limit}
        yield "predecessor", (a,), {"cutoff": limit, "return_seen": True}
    yield "predecessor", (a, b), {}
    yield "predecessor", (a, b), {"return_seen": True}
    yield "ego_graph", (a,), {"undirected": True, "center": False}
    yield "ego_graph", (a,), {"radius": 1.5, "distance": "weight"}
    yield "generic_bfs_edges", (a,), {}
    yield from (("bfs_edges", ("nowhere",), {}), ("shortest_path", (a, "nowhere"), {}), ("descendants", (7,), {}))


FROM_A_NODE: Final = (
    "ancestors", "bfs_layers", "bfs_predecessors", "bfs_successors", "bfs_tree", "descendants", "is_isolate",
    "predecessor", "shortest_path", "shortest_path_length", "single_source_shortest_path",
    "single_source_shortest_path_length", "single_target_shortest_path", "single_target_shortest_path_length",
)  # fmt: skip
BETWEEN_TWO: Final = (
    "all_shortest_paths", "bidirectional_dijkstra", "bidirectional_shortest_path", "dijkstra_path",
    "dijkstra_path_length", "has_path", "shortest_path", "shortest_path_length",
)  # fmt: skip
WHOLE: Final = (
    "connected_components", "degree_centrality", "in_degree_centrality", "is_strongly_connected", "is_weakly_connected",
    "isolates", "number_of_isolates", "number_strongly_connected_components", "number_weakly_connected_components",
    "out_degree_centrality", "strongly_connected_components", "weakly_connected_components",
)  # fmt: skip
ALL_PATHS: Final = "single_source_all_shortest_paths"
"""For very small graphs: edges of weight 0 multiply the paths."""
PAIRS: Final = (
    "all_pairs_dijkstra", "all_pairs_dijkstra_path", "all_pairs_dijkstra_path_length", "all_pairs_shortest_path",
    "all_pairs_shortest_path_length", "average_shortest_path_length",
)  # fmt: skip
"""For small graphs: they take the square of its nodes."""


def answer(graph: Any, case: Case, **keywords: Any) -> Any:
    """What a call gives, listed if it comes bit by bit (the first 300), or what it raises."""
    name, args, more = case
    function: Callable[..., Any] = getattr(nx, name)
    try:
        given = function(graph, *args, **more, **keywords)
        return plain(list(islice(given, 300)) if isinstance(given, Iterator) else given)
    except (nx.NetworkXException, ValueError) as error:
        return type(error), str(error)


def plain(given: Any) -> Any:
    """A graph as its nodes and edges with all that they say."""
    if isinstance(given, nx.Graph):
        edges = given.edges(keys=True, data=True) if given.is_multigraph() else given.edges(data=True)
        return sorted(given.nodes(data=True)), sorted(edges, key=str)
    return given


def differences(seed: int) -> Iterator[str]:
    """What networkx answers otherwise than the arrays of the same random multigraph: its rows, the functions of the
    backend, and PageRank at equal accuracy, by 1e-9 in all."""
    kinds, edges = drawn(seed)
    plain, graph = networkx_of(kinds, edges), LargeGraph(arrays_of(kinds, edges))
    marked = graph.with_backend("oven_csr")
    for rows in ("nodes", "adj", "pred"):
        if list(getattr(graph, rows).items()) != list(getattr(plain, rows).items()):
            yield f"graph {seed}: {rows}"
    for case in cases(sorted(kinds)):
        if answer(marked, case) != answer(plain, case):
            yield f"graph {seed}: {case}"
    some = dict.fromkeys(sorted(kinds)[:3], 2.0)
    for keywords in ({}, {"personalization": some}, {"weight": None, "dangling": some}, {"alpha": 0.5, "nstart": some}):
        found = nx.pagerank(graph, backend="oven_csr", tol=1e-11, max_iter=1000, **keywords)
        wanted = nx.pagerank(plain, tol=1e-11 / len(kinds), max_iter=1000, **keywords)
        if list(found) != list(wanted) or sum(abs(found[node] - wanted[node]) for node in wanted) > 1e-9:
            yield f"graph {seed}: pagerank {keywords}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--graphs", type=int, default=500, help="how many random multigraphs [default: 500]")
    graphs = parser.parse_args().graphs
    found = [difference for seed in range(graphs) for difference in differences(seed)]
    print(json.dumps({"graphs": graphs, "different": len(found), "first": found[:5], "cpu_s": process_time()}))
    raise SystemExit(bool(found))

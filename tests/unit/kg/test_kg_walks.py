"""PageRank and paths over arrays, against networkx and against a dense solution."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.unit.kg.test_kg_arrays import built

from oven_kg.arrays import paths
from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.random_walk import RandomWalk

EDGES = st.lists(
    st.tuples(
        st.sampled_from("abcdefghij"),
        st.sampled_from(["r", "s", "t"]),
        st.sampled_from("abcdefghij"),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=30,
)
DIRECTIONS: tuple[paths.Direction, ...] = ("out", "in", "both")


def network(arrays: GraphArrays) -> Any:
    graph: Any = nx.MultiDiGraph()
    graph.add_nodes_from(range(arrays.nodes))
    columns = (arrays.sources, arrays.dst, arrays.rel, arrays.weight)
    for src, dst, rel, weight in zip(*(column.tolist() for column in columns), strict=True):
        graph.add_edge(src, dst, key=rel, weight=weight)
    return graph


def turned(graph: Any, direction: paths.Direction) -> Any:
    return {"out": graph, "in": graph.reverse(), "both": graph.to_undirected()}[direction]


def solved(arrays: GraphArrays, restart: NDArray[Any], both: bool = False, damping: float = 0.85) -> NDArray[Any]:
    """The walk's shares from the dense system (1 − d·P) x = (1 − d)·restart."""
    step = np.zeros((arrays.nodes, arrays.nodes))
    np.add.at(step, (arrays.dst, arrays.sources), arrays.weight)
    step = step + step.T if both else step
    sums = step.sum(axis=0)
    step = np.where(sums > 0, step / np.where(sums > 0, sums, 1), restart[:, None])
    return np.linalg.solve(np.eye(arrays.nodes) - damping * step, (1 - damping) * restart)


@given(EDGES, st.integers(0, 9))
@settings(max_examples=60)
def test_ranks_equal_the_dense_solution(edges: list[tuple[str, str, str, float]], seed: int) -> None:
    arrays = built(edges)
    walk = RandomWalk(arrays)
    anywhere, at_one_node = np.full(arrays.nodes, 1 / arrays.nodes), np.zeros(arrays.nodes)
    at_one_node[seed % arrays.nodes] = 1
    assert np.abs(walk.ranks() - solved(arrays, anywhere)).sum() <= 1e-8
    assert np.abs(walk.ranks(at_one_node) - solved(arrays, at_one_node)).sum() <= 1e-8
    for both in (False, True):
        nodes, shares = walk.nearest(seed % arrays.nodes, arrays.nodes, undirected=both, residue=1e-9)
        walk_shares = np.zeros(arrays.nodes)
        walk_shares[nodes] = shares
        assert np.abs(walk_shares - solved(arrays, at_one_node, both)).sum() < 1e-6
    expected = nx.pagerank(network(arrays), tol=1e-12 / arrays.nodes, max_iter=1000)
    assert max(abs(expected[node] - rank) for node, rank in enumerate(walk.ranks())) < 1e-8


def test_the_nodes_near_a_node_of_a_large_graph_are_the_exact_ones() -> None:
    """Hubs and all; the push stops far from the end, and the hubs that it never hands on from are in their places."""
    draw = np.random.default_rng(3)
    count, edges = 5_000, 30_000
    ends = [(count * draw.random(edges) ** skew).astype(int) for skew in (1.5, 3)]
    places = draw.permutation(count)
    builder = Builder()
    names = [[f"n{places[end]}" for end in column] for column in ends]
    builder.add_edges(names[0], ["r"] * edges, names[1], draw.random(edges))
    walk = RandomWalk(builder.finish())
    agreed = []
    for start in range(0, 100, 10):
        at_one_node = np.zeros(walk.arrays.nodes)
        at_one_node[start] = 1
        exact = np.argsort(-walk.ranks(at_one_node))[:20]
        agreed.append(len(set(exact.tolist()) & set(walk.nearest(start, 20)[0].tolist())) / 20)
    assert np.mean(agreed) >= 0.95


@given(EDGES, st.sampled_from(DIRECTIONS), st.booleans(), st.integers(0, 9))
@settings(max_examples=100)
def test_paths_and_neighbourhoods_equal_networkxs(
    edges: list[tuple[str, str, str, float]], direction: paths.Direction, one_relation: bool, seed: int
) -> None:
    arrays = built(edges)
    graph, relations = network(arrays), [0] if one_relation else None
    if one_relation:
        graph.remove_edges_from([edge for edge in list(graph.edges(keys=True)) if edge[2] != 0])
    graph, start = turned(graph, direction), seed % arrays.nodes
    away = dict(nx.single_source_shortest_path_length(graph, start))
    for depth in (1, 2, 5):
        nodes, distances = paths.nodes_within(arrays, start, depth, direction, relations)
        expected = {node: far for node, far in away.items() if 0 < far <= depth}
        assert dict(zip(nodes.tolist(), distances.tolist(), strict=True)) == expected
        enough_nodes, _ = paths.nodes_within(arrays, start, depth, direction, relations, min_nodes=3)
        assert set(enough_nodes.tolist()) <= set(expected) and len(enough_nodes) >= min(3, len(expected))
    for end in range(arrays.nodes):
        path = paths.shortest_path(arrays, start, end, direction, relations)
        assert path in nx.all_shortest_paths(graph, start, end) if end in away else path == []

"""The networkx backend `oven_csr`: what networkx answers, on the arrays."""

from __future__ import annotations

import inspect
from typing import Any

import networkx as nx
import pytest
from networkx.utils.backends import _registered_algorithms as registered
from tests.support.multigraphs import arrays_of, drawn, networkx_of
from tests.support.networkx_cases import Case, answer, cases

from oven_kg.large import networkx_backend
from oven_kg.large.backend_info import FUNCTIONS as FUNCTIONS_BY_NOTE
from oven_kg.large.networkx_view import LargeGraph

FUNCTIONS = sorted(str(name) for names in FUNCTIONS_BY_NOTE.values() for name in names.split())


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_500_random_multigraphs_are_answered_as_by_networkx(first: int) -> None:
    for seed in range(first, first + 100):
        kinds, edges = drawn(seed)
        graph, plain = LargeGraph(arrays_of(kinds, edges), backend="oven_csr"), networkx_of(kinds, edges)
        for case in cases(sorted(kinds)):
            assert answer(graph, case) == answer(plain, case), (seed, case)


@pytest.mark.parametrize("seed", range(40))
def test_pagerank_is_networkxs_at_equal_accuracy(seed: int) -> None:
    kinds, edges = drawn(seed)
    graph, plain = LargeGraph(arrays_of(kinds, edges)), networkx_of(kinds, edges)
    some = dict.fromkeys(sorted(kinds)[:3], 2.0)
    for keywords in ({}, {"personalization": some}, {"weight": None, "dangling": some}, {"alpha": 0.5, "nstart": some}):
        fine = {"max_iter": 1000, **keywords}
        found = nx.pagerank(graph, backend="oven_csr", tol=1e-11, **fine)
        wanted = nx.pagerank(plain, tol=1e-11 / len(kinds), **fine)
        assert list(found) == list(wanted)
        assert sum(abs(found[node] - wanted[node]) for node in wanted) < 1e-9
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.pagerank(graph, backend="oven_csr", max_iter=0)
    with pytest.raises(ZeroDivisionError):
        nx.pagerank(graph, backend="oven_csr", personalization={"nowhere": 1})


def test_each_function_has_networkxs_signature_and_is_told_of() -> None:
    assert {name for name in registered if hasattr(networkx_backend, name)} == set(FUNCTIONS)
    assert set(networkx_backend.__all__) == {*FUNCTIONS, "convert_from_nx", "convert_to_nx"}
    for name in FUNCTIONS:
        ours, theirs = (
            [(part.name, part.kind, part.default) for part in inspect.signature(function).parameters.values()]
            for function in (getattr(networkx_backend, name), registered[name].orig_func)
        )
        assert ours == theirs, name
    assert "oven_csr : Large graphs" in nx.pagerank.__doc__


GRAPH: tuple[dict[str, str], list[Any]] = ({"a": "", "b": "", "c": ""}, [("a", "R", "b", 1.0), ("b", "Q", "c", 2.0)])


def test_a_graph_that_is_marked_raises_for_what_the_backend_lacks_and_the_other_runs_it() -> None:
    graph = LargeGraph(arrays_of(*GRAPH))
    marked = graph.with_backend("oven_csr")
    assert marked.arrays is graph.arrays and marked.csr is graph.csr and marked.with_backend("oven_csr") is marked
    assert nx.betweenness_centrality(graph) == nx.betweenness_centrality(networkx_of(*GRAPH))
    with pytest.raises(NotImplementedError, match="'betweenness_centrality' is not implemented by"):
        nx.betweenness_centrality(marked)
    assert nx.betweenness_centrality(marked, backend="networkx")["b"] == 0.5
    with pytest.raises(NotImplementedError, match="oven_csr"):
        nx.shortest_path(marked, "a", "b", weight=lambda *_: 1)
    assert nx.shortest_path(graph, "a", "c", weight=lambda *_: 1) == ["a", "b", "c"]
    with pytest.raises(NotImplementedError) as caught:
        nx.shortest_path(graph, "a", "c", weight="weight", method="bellman-ford", backend="oven_csr")
    assert "Dijkstra's method and not bellman-ford" in str(caught.value.__cause__)


def test_nothing_of_a_large_graph_is_copied_or_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networkx_backend, "convert", None)
    graph = LargeGraph(arrays_of(*GRAPH))
    assert networkx_backend.convert_from_nx(graph).arrays is graph.arrays
    assert networkx_backend.convert_to_nx(graph.with_backend("oven_csr")).arrays is graph.arrays
    for _ in range(2):  # the second time networkx would warn of a conversion that it kept
        assert nx.has_path(graph, "a", "c", backend="oven_csr")
    assert graph.csr.out.ends is graph.arrays.dst


@pytest.mark.parametrize("weight", [2**53 + 1, "heavy", float("nan"), None])
def test_weights_that_are_no_numbers_for_doubles_are_refused(weight: Any) -> None:
    graph = nx.Graph()
    graph.add_edge(1, 2, weight=weight)
    with pytest.raises(NotImplementedError):
        nx.pagerank(graph, backend="oven_csr")
    assert nx.has_path(graph, 1, 2, backend="oven_csr")


def test_negative_and_infinite_weights_are_answered_as_by_networkx() -> None:
    graph = nx.gnm_random_graph(60, 1500, seed=1, directed=True)
    for value in (-1.0, float("inf")):
        nx.set_edge_attributes(graph, 1.0, "weight")
        graph.add_edge(0, 1, weight=value)
        graph.add_edge(1, 0, weight=value)
        case: Case = ("single_source_dijkstra_path_length", (0,), {})
        assert answer(graph, case, backend="oven_csr") == answer(graph, case)

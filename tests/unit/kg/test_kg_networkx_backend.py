"""The networkx backend `oven_csr`: what networkx answers, on the arrays."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from networkx.utils.backends import _registered_algorithms as registered
from tests.support.multigraphs import arrays_of, networkx_of
from tests.support.networkx_cases import Case, answer, differences

from oven_kg.large import networkx_backend
from oven_kg.large.backend_info import FUNCTIONS as FUNCTIONS_BY_NOTE
from oven_kg.large.networkx_view import LargeGraph

FUNCTIONS = sorted(str(name) for names in FUNCTIONS_BY_NOTE.values() for name in names.split())


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_random_multigraphs_are_answered_as_by_networkx(first: int) -> None:
    """500 of them: python -m tests.support.networkx_cases"""
    for seed in range(first, first + 25):
        assert list(differences(seed)) == []


def test_pagerank_that_does_not_converge_or_begins_nowhere_raises() -> None:
    graph = LargeGraph(arrays_of(*GRAPH), backend="oven_csr")
    with pytest.raises(nx.PowerIterationFailedConvergence):
        nx.pagerank(graph, max_iter=0)
    for keywords in ({"personalization": {"nowhere": 1}}, {"dangling": {"a": 0}}):
        with pytest.raises(ZeroDivisionError):
            nx.pagerank(graph, **keywords)


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


def test_what_networkx_imports_for_everybody_imports_nothing() -> None:
    package = Path(networkx_backend.__file__).parents[1]
    for module in (package / "__init__.py", package / "large" / "__init__.py", package / "large" / "backend_info.py"):
        found = [
            node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        assert found == [], module
    told = entry_points(group="networkx.backend_info", name="oven_csr")
    assert [point.load()()["functions"].keys() == set(FUNCTIONS) for point in told] == [True]


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


def test_networkxs_own_tests_pass_through_the_backend() -> None:
    where = Path(nx.__file__).parent
    files = [where / part / f"tests/test_{name}.py" for part, names in OWN_TESTS.items() for name in names.split()]
    checkout = Path(__file__).parents[3]
    backend = {"NETWORKX_TEST_BACKEND": "oven_csr", "NETWORKX_FALLBACK_TO_NX": "1", "PYTHONPATH": str(checkout)}
    options = ["-q", "-c", os.devnull, "--rootdir", str(where), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "tests.support.networkx_calls", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=checkout,
        env={**os.environ, **backend},
    )
    assert done.returncode == 0, done.stdout[-3000:]
    answered = json.loads(done.stdout.split("answered: ")[1].splitlines()[0])
    unasked = {name for name in FUNCTIONS if not answered.get(name)}
    assert unasked == {"generic_bfs_edges"}, "networkx calls it from its own functions only"


OWN_TESTS = {
    "algorithms": "dag isolate",
    "algorithms/centrality": "degree_centrality",
    "algorithms/components": "connected strongly_connected weakly_connected",
    "algorithms/link_analysis": "pagerank",
    "algorithms/shortest_paths": "generic unweighted weighted",
    "algorithms/traversal": "bfs",
    "generators": "ego",
}
"""Folder of networkx → its files of tests in which the backend's functions are called."""

"""A large graph as networkx sees it, beside the same graph as networkx would hold it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.multigraphs import Edge, arrays_of, drawn, networkx_of

from oven_core.errors import ConfigError
from oven_kg.large.folder import write
from oven_kg.large.networkx_view import LargeGraph

NAMES = st.sampled_from(["a", "b", "ä", "水", "zz"])
GRAPHS = st.tuples(
    st.dictionaries(NAMES, st.sampled_from(["", "person"])),
    st.lists(st.tuples(NAMES, st.sampled_from(["R", "Q"]), NAMES, st.sampled_from([0.0, 0.5, 3.0])), max_size=15),
)


def both(drawn: tuple[dict[str, str], list[Edge]]) -> tuple[Any, Any]:
    kinds, edges = drawn
    kinds = dict.fromkeys([name for edge in edges for name in (edge[0], edge[2])], "") | kinds
    return LargeGraph(arrays_of(kinds, edges)), networkx_of(kinds, edges)


@given(GRAPHS)
@settings(max_examples=60, deadline=None)
def test_nodes_edges_and_degrees_are_networkxs_in_its_order(drawn: tuple[dict[str, str], list[Edge]]) -> None:
    ours, theirs = both(drawn)
    views: list[Callable[[Any], Any]] = [
        lambda graph: list(graph),
        lambda graph: list(graph.nodes(data=True)),
        lambda graph: list(graph.nodes(data="kind")),
        lambda graph: list(graph.edges),
        lambda graph: list(graph.edges(keys=True, data=True)),
        lambda graph: list(graph.edges(["a", "zz"], keys=True, data="weight")),
        lambda graph: list(graph.in_edges(keys=True, data=True)),
        lambda graph: list(graph.in_edges(["水", "nowhere"])),
        lambda graph: [(name, list(row.items())) for name, row in graph.adjacency()],
        lambda graph: {name: list(graph.pred[name]) for name in graph},
        lambda graph: {name: (len(graph[name]), list(graph[name].values())) for name in graph},
        lambda graph: [list(graph.degree), list(graph.in_degree), list(graph.out_degree)],
        lambda graph: [list(graph.degree(weight="weight")), list(graph.in_degree(["a"], "weight"))],
        lambda graph: [list(graph.out_degree(["zz", "b"])), len(graph.degree), dict(graph.degree(weight="missing"))],
        lambda graph: (len(graph), graph.size(), graph.size("weight"), graph.number_of_edges(), len(graph.edges)),
        lambda graph: [(a, b, graph.number_of_edges(a, b)) for a in graph for b in graph],
        lambda graph: (list(nx.selfloop_edges(graph, keys=True)), nx.is_empty(graph), nx.density(graph)),
    ]
    for at, view in enumerate(views):
        assert view(ours) == view(theirs), at
    assert ours.adj == theirs.adj and ours.pred == theirs.pred and dict(ours.nodes) == dict(theirs.nodes)


@given(GRAPHS, NAMES, NAMES)
@settings(max_examples=60, deadline=None)
def test_questions_about_one_node_or_edge_are_answered_as_by_networkx(
    drawn: tuple[dict[str, str], list[Edge]], a: str, b: str
) -> None:
    ours, theirs = both(drawn)
    for graph in (ours, theirs):
        for known in (graph.nodes, graph.adj, graph.pred, vars(graph)["_node"]):
            assert 7 not in known and None not in known
        with pytest.raises(TypeError):
            vars(graph)["_adj"][["a"]]
        assert ["a"] not in graph and ("a", "b") not in graph
    for question in (
        lambda graph: (a in graph, graph.has_node(b), graph.has_edge(a, b), graph.has_edge(a, b, "R")),
        lambda graph: (graph.get_edge_data(a, b), graph.get_edge_data(a, b, "Q"), graph.get_edge_data(a, 7, default=0)),
        lambda graph: ((a, b, "R") in graph.edges, (a, b, "R") in graph.in_edges, graph.has_successor(a, b)),
        lambda graph: (sorted(graph.nbunch_iter([a, "nowhere", 7])), graph.has_predecessor(a, b)),
    ):
        assert question(ours) == question(theirs)
    for raising in (
        lambda graph: graph[a][b]["R"],
        lambda graph: graph.nodes[a],
        lambda graph: graph.edges[a, b, "Q"],
        lambda graph: graph.degree[a],
        lambda graph: (list(graph.successors(a)), list(graph.predecessors(a))),
        lambda graph: list(graph.neighbors("nowhere")),
        lambda graph: graph.nodes["nowhere"],
        lambda graph: graph.adj[7],
    ):
        assert outcome(raising, ours) == outcome(raising, theirs)


def outcome(call: Callable[[Any], Any], graph: Any) -> Any:
    try:
        return call(graph)
    except (KeyError, nx.NetworkXError) as error:
        return type(error), str(error)


@given(GRAPHS, st.sets(NAMES))
@settings(max_examples=60, deadline=None)
def test_copies_and_views_are_graphs_of_networkxs(drawn: tuple[dict[str, str], list[Edge]], some: set[str]) -> None:
    ours, theirs = both(drawn)
    attributes = {"sha": ours.arrays.sha, "licence": "CC0-1.0"}
    theirs.graph.update(attributes)
    derived: tuple[Callable[[Any], Any], ...] = (
        lambda graph: graph.copy(),
        lambda graph: graph.copy(as_view=True),
        lambda graph: graph.subgraph(some),
        lambda graph: graph.subgraph(some).copy(),
        lambda graph: graph.reverse(),
        lambda graph: graph.reverse(copy=False),
        lambda graph: graph.to_undirected(),
        lambda graph: graph.to_undirected(as_view=True),
        lambda graph: graph.to_directed(),
        lambda graph: graph.edge_subgraph([edge for edge in graph.edges if edge[2] == "R"]),
        lambda graph: nx.DiGraph(graph),
        lambda graph: nx.compose(graph, nx.MultiDiGraph([("a", "new")])),
        lambda graph: nx.relabel_nodes(graph, str.upper),
    )
    for derive in derived:
        mine, other = derive(ours), derive(theirs)
        assert type(mine) is type(other) and mine.graph == other.graph
        assert nx.utils.graphs_equal(mine, other)
        assert nx.is_frozen(mine) is nx.is_frozen(other)


def test_a_copy_can_be_changed_and_the_graph_cannot() -> None:
    ours, _ = both(drawn(7))
    node, (a, b, relation) = next(iter(ours)), next(iter(ours.edges))
    made = ours.copy()
    made.add_edge("new", node, key="R", weight=2.0)
    made.nodes[node]["kind"] = "other"
    made[a][b][relation]["weight"] = 9.0
    assert "new" not in ours and ours.nodes[node]["kind"] != "other" and ours[a][b][relation]["weight"] != 9.0
    changes: tuple[Callable[[], Any], ...] = (
        lambda: ours.add_node("x"),
        lambda: ours.add_nodes_from(["x"]),
        lambda: ours.remove_node(node),
        lambda: ours.remove_nodes_from([node]),
        lambda: ours.add_edge(a, b),
        lambda: ours.add_edges_from([(a, b)]),
        lambda: ours.add_weighted_edges_from([(a, b, 1)]),
        lambda: ours.remove_edge(a, b),
        lambda: ours.remove_edges_from([(a, b)]),
        lambda: ours.update(edges=[(a, b)]),
        lambda: ours.clear(),
        lambda: ours.clear_edges(),
        lambda: ours[a][b][relation].update(weight=1.0),
        lambda: ours.edges[a, b, relation].pop("weight"),
        lambda: ours.get_edge_data(a, b).clear(),
        lambda: ours.nodes[node].setdefault("x", 1),
        lambda: nx.set_node_attributes(ours, "x", "kind"),
        lambda: nx.set_edge_attributes(ours, 1, "weight"),
        lambda: nx.relabel_nodes(ours, {node: "x"}, copy=False),
    )
    for change in changes:
        with pytest.raises(nx.NetworkXError, match=r"read-only.*graph\.copy\(\)"):
            change()


@pytest.mark.parametrize("backend", ["networkx", "oven_csr"])
def test_pickles_and_copies_of_the_object_are_the_same_graph(backend: str, tmp_path: Path) -> None:
    kinds, edges = drawn(20)
    write(tmp_path / "graph", arrays_of(kinds, edges))
    graph = LargeGraph.open(tmp_path / "graph", backend=backend)
    assert nx.has_path(graph, *list(graph)[:2], backend="oven_csr") and str(graph).startswith("LargeGraph with ")
    for again in (pickle.loads(pickle.dumps(graph)), copy.copy(graph), copy.deepcopy(graph)):
        assert type(again) is LargeGraph and again.__networkx_backend__ == backend
        assert list(again.edges(keys=True, data=True)) == list(graph.edges(keys=True, data=True))
        assert again.arrays.sha == graph.arrays.sha and again.graph == graph.graph
    assert copy.deepcopy(graph).arrays is graph.arrays
    row = graph[next(iter(graph))]
    assert pickle.loads(pickle.dumps(graph.nodes[next(iter(graph))])) == graph.nodes[next(iter(graph))]
    assert {name: copy.deepcopy(dict(keys)) for name, keys in row.items()} == row


def test_the_five_lines_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "conceptnet", arrays_of({}, [("apple", "IS_A", "fruit", 2.0)]))
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "knowledge.md").read_text()
    lines = page.split("## A large graph in Python")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(lines, names)
    assert len([line for line in lines.splitlines() if line]) == 5 and sum(names["ranks"].values()) == pytest.approx(1)


def test_another_backend_and_a_folder_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no backend 'cugraph'.*networkx, oven_csr"):
        LargeGraph(arrays_of({"a": ""}, []), backend="cugraph")
    with pytest.raises(ConfigError, match=r"graph\.json"):
        LargeGraph.open(tmp_path)


def test_what_the_bound_on_networkxs_version_protects() -> None:
    """Private attributes, class attributes and the first lines of copies that `LargeGraph` rests on."""
    assert nx.__version__.startswith("3.6")
    plain = nx.MultiDiGraph([("a", "b")])
    assert {"_node", "_adj", "_succ", "_pred", "__networkx_cache__", "graph"} <= vars(plain).keys()
    assert nx.Graph.__networkx_backend__ == "networkx"
    ours: Any = LargeGraph(arrays_of({"a": ""}, [("a", "R", "b", 1.0)]))
    for graph in (plain, ours):
        assert vars(graph)["_succ"] is vars(graph)["_adj"]
    assert vars(ours).keys() >= vars(nx.MultiDiGraph()).keys()
    assert type(ours.__class__()) is nx.MultiDiGraph  # how networkx begins copies and views
    assert type(ours.degree).__mro__[2] is nx.reportviews.DiDegreeView
    public = {name for name in dir(nx.MultiDiGraph) if not name.startswith("_")}
    changing = {name for name in public if name.startswith(("add_", "remove_", "clear", "update"))}
    assert {name for name in changing if getattr(LargeGraph, name) is getattr(nx.MultiDiGraph, name)} == set()

"""A large graph's answers against the same graph's as a small one, and against plain definitions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import CurriculumRequest, GraphQuery, QueryAnswer, TokenPriorRequest
from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.word_search import WordSearch, split_words
from oven_kg.graph.graph_yaml import Edge, Node, Records
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.reasoning.query import query
from oven_kg.service.endpoints import PriorService
from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints

Triple = tuple[str, str, str]
NAMES = tuple(f"{first}_{second}" for first in ("loss", "Rate", "clip") for second in ("spike", "über", "up2"))
RELATIONS = ("CAUSES", "REQUIRES", "NEAR")
TRIPLES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(RELATIONS), st.sampled_from(NAMES)), min_size=1, max_size=25
)


def large(triples: Sequence[Triple]) -> LargeGraphEndpoints:
    builder = Builder()
    builder.declare(NAMES, ["thing"] * len(NAMES))
    builder.add_edges([src for src, _, _ in triples], [rel for _, rel, _ in triples], [dst for _, _, dst in triples])
    return LargeGraphEndpoints(builder.finish())


def small(triples: Sequence[Triple]) -> KnowledgeGraph:
    edges = [Edge(f"e{number}", *triple, 1.0, "D", "s") for number, triple in enumerate(dict.fromkeys(triples))]
    return KnowledgeGraph(Records(tuple(Node(name, "thing") for name in NAMES), tuple(edges), ()))


def ask(answers: LargeGraphEndpoints, **values: Any) -> QueryAnswer:
    answer = answers.endpoints["query"][1](GraphQuery(**values))
    assert isinstance(answer, QueryAnswer) and answer.graph == answers.sha
    return answer


@settings(max_examples=60, deadline=None)
@given(TRIPLES, st.sampled_from(("out", "in", "both")), st.lists(st.sampled_from(RELATIONS), unique=True))
def test_neighbours_and_paths_equal_those_of_the_small_graph(
    triples: list[Triple], direction: Any, relations: list[str]
) -> None:
    answers, graph = large(triples), small(triples)
    wanted = [name for name in relations if any(name == rel for _, rel, _ in triples)]
    more: dict[str, Any] = {"direction": direction, "relations": wanted, "limit": 200}
    start, end = triples[0][0], triples[-1][2]
    for depth in (1, 2, 3):
        question = GraphQuery(op="neighbors", node=start, depth=depth, **more)
        expected, answer = query(graph, question), ask(answers, op="neighbors", node=start, depth=depth, **more)
        assert sorted((row.node, row.relation, row.towards, row.depth) for row in answer.rows) == sorted(
            (row.node, row.relation, row.towards, row.depth) for row in expected.rows
        )
        assert not answer.more
    path = ask(answers, op="path", node=start, to=end, **more)
    expected = query(graph, GraphQuery(op="path", node=start, to=end, **more))
    assert len(path.rows) == len(expected.rows)
    arrays = {(triple[0], triple[1], triple[2]) for triple in triples}
    for before, row in zip(path.rows, path.rows[1:], strict=False):
        ends = (before.node, row.node) if row.towards == "out" else (row.node, before.node)
        assert (ends[0], row.relation, ends[1]) in arrays and (not wanted or row.relation in wanted)
        assert direction in ("both", row.towards)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"op": "neighbors", "node": "los"}, "no node 'los'; similar names are .*'loss_spike'"),
        ({"op": "path", "node": "loss_spike", "to": "?"}, "no node '\\?'"),
        ({"op": "neighbors", "node": "loss_spike", "relations": ["X"]}, "no relation 'X'; it has NEAR"),
        ({"op": "ppr", "node": "loss_spike", "direction": "in"}, "in the direction both or out"),
    ],
)
def test_unknown_names_and_directions_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ask(large([("loss_spike", "NEAR", "Rate_up2")]), **values)


def test_a_search_ranks_by_matching_words_then_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = large([("loss_spike", "NEAR", "Rate_up2")])
    assert [row.node for row in ask(answers, op="search", node="rate UP2").rows] == [
        "Rate_up2", "clip_up2", "loss_up2", "Rate_spike", "Rate_über",
    ]  # fmt: skip
    assert ask(answers, op="search", node="pike").rows == ()
    monkeypatch.setattr("oven_kg.reasoning.large_query.MAX_CANDIDATES", 2)
    answer = ask(answers, op="search", node="rate")
    assert [row.node for row in answer.rows] == ["Rate_up2", "Rate_spike"] and answer.more


@settings(max_examples=60, deadline=None)
@given(st.sets(st.text(alphabet="aAbZz09_ -é世", min_size=1, max_size=12), min_size=1, max_size=12))
def test_a_word_is_searched_in_each_name(names: set[str]) -> None:
    builder = Builder()
    builder.declare(sorted(names))
    arrays = builder.finish()
    index = WordSearch(arrays)
    for word in {word for name in names for word in split_words(name)}:
        assert arrays.names(index.nodes_with(word, 100)) == sorted(name for name in names if word in split_words(name))


@settings(max_examples=30, deadline=None)
@given(TRIPLES)
def test_token_scores_equal_those_of_the_small_graph(triples: list[Triple]) -> None:
    from oven_kg.token_prior.label_scores import label_scores, name_scores

    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text if letter.isascii()]

    assert name_scores(large(triples).arrays, letters) == pytest.approx(label_scores(small(triples), letters), abs=1e-7)


def test_an_empty_graph_refuses_in_one_sentence() -> None:
    empty = LargeGraphEndpoints(Builder().finish())
    assert ask(empty, op="search", node="loss").rows == ()
    with pytest.raises(ConfigError, match="no node 'a'"):
        ask(empty, op="ppr", node="a")
    with pytest.raises(ConfigError, match="no token of the vocabulary is in a label"):
        empty.endpoints["token_prior"][1](TokenPriorRequest(method="kg", vocabulary=("a",)))


def test_prerequisites_come_from_the_large_graph_only() -> None:
    chain = [("loss_up2", "REQUIRES", "Rate_up2"), ("Rate_up2", "REQUIRES", "clip_up2")]
    answers = PriorService(small([("loss_spike", "REQUIRES", "loss_up2")]), large=large(chain))
    mastery = [
        {"topic": "loss_up2", "successes": 5, "failures": 5},
        {"topic": "clip_up2", "successes": 0, "failures": 10},
        {"topic": "loss_spike", "successes": 5, "failures": 5},
        {"topic": "no such node", "successes": 1, "failures": 1},
    ]
    answer = answers.endpoints["curriculum"][1](CurriculumRequest.model_validate({"mastery": mastery}))
    assert answer.graph == answers.large.sha != answers.graph.sha  # type: ignore[union-attr,attr-defined]
    assert [(short.topic, short.path) for short in answer.unmet] == [  # type: ignore[attr-defined]
        ("loss_up2", ("loss_up2", "Rate_up2", "clip_up2"))
    ]
    assert answer.known == 1  # type: ignore[attr-defined]


def test_each_answer_carries_the_hash_of_its_graph() -> None:
    nearby = large([("loss_spike", "NEAR", "Rate_up2")])
    answers = PriorService(small([("loss_spike", "CAUSES", "loss_up2")]), large=nearby)
    info = answers("info", b'{"v":1,"type":"GraphInfoRequest"}')
    assert info is not None and answers.large is not None
    assert answers.graph.sha in info.decode() and f'"large":"{answers.large.sha}"' in info.decode()
    assert "large" not in (PriorService(answers.graph)("info", b'{"type":"GraphInfoRequest"}') or b"").decode()
    arrays: GraphArrays = answers.large.arrays
    assert arrays.sha == answers.large.sha

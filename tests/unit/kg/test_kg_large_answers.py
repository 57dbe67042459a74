"""A large graph's answers against the same graph's as a small one, and against plain definitions of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import CurriculumRequest, GraphQuery, QueryAnswer, TokenPriorRequest
from oven_kg.arrays.builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.word_index import WordIndex, split
from oven_kg.graph.graph_yaml import Edge, Node, Records
from oven_kg.graph.knowledge import Knowledge
from oven_kg.reasoning.query import query
from oven_kg.service.endpoints import Answers
from oven_kg.service.large_answers import LargeAnswers

Triple = tuple[str, str, str]
NAMES = tuple(f"{first}_{second}" for first in ("loss", "Rate", "clip") for second in ("spike", "über", "up2"))
RELATIONS = ("CAUSES", "REQUIRES", "NEAR")
TRIPLES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(RELATIONS), st.sampled_from(NAMES)), min_size=1, max_size=25
)


def large(triples: Sequence[Triple]) -> LargeAnswers:
    builder = Builder()
    builder.declare(NAMES, ["thing"] * len(NAMES))
    builder.edges([src for src, _, _ in triples], [rel for _, rel, _ in triples], [dst for _, _, dst in triples])
    return LargeAnswers(builder.finish())


def small(triples: Sequence[Triple]) -> Knowledge:
    edges = [Edge(f"e{at}", *triple, 1.0, "D", "s") for at, triple in enumerate(dict.fromkeys(triples))]
    return Knowledge(Records(tuple(Node(name, "thing") for name in NAMES), tuple(edges), ()))


def asked(answers: LargeAnswers, **values: Any) -> QueryAnswer:
    found = answers.endpoints["query"][1](GraphQuery(**values))
    assert isinstance(found, QueryAnswer) and found.graph == answers.sha
    return found


@settings(max_examples=60, deadline=None)
@given(TRIPLES, st.sampled_from(("out", "in", "both")), st.lists(st.sampled_from(RELATIONS), unique=True))
def test_neighbours_and_paths_are_those_of_the_same_graph_as_a_small_one(
    triples: list[Triple], direction: Any, relations: list[str]
) -> None:
    answers, graph = large(triples), small(triples)
    wanted = [name for name in relations if any(name == rel for _, rel, _ in triples)]
    more: dict[str, Any] = {"direction": direction, "relations": wanted, "limit": 200}
    start, end = triples[0][0], triples[-1][2]
    for depth in (1, 2, 3):
        question = GraphQuery(op="neighbors", node=start, depth=depth, **more)
        expected, found = query(graph, question), asked(answers, op="neighbors", node=start, depth=depth, **more)
        assert sorted((row.node, row.relation, row.towards, row.depth) for row in found.rows) == sorted(
            (row.node, row.relation, row.towards, row.depth) for row in expected.rows
        )
        assert not found.more
    way = asked(answers, op="path", node=start, to=end, **more)
    expected = query(graph, GraphQuery(op="path", node=start, to=end, **more))
    assert len(way.rows) == len(expected.rows)
    held = {(triple[0], triple[1], triple[2]) for triple in triples}
    for before, row in zip(way.rows, way.rows[1:], strict=False):
        ends = (before.node, row.node) if row.towards == "out" else (row.node, before.node)
        assert (ends[0], row.relation, ends[1]) in held and (not wanted or row.relation in wanted)
        assert direction in ("both", row.towards)


def test_the_heaviest_edges_come_first_and_each_names_its_place() -> None:
    builder = Builder()
    builder.edges(["a"] * 3, ["NEAR"] * 3, ["b", "c", "d"], [1, 3, 2])
    answers = LargeAnswers(builder.finish())
    found = asked(answers, op="neighbors", node="a", limit=2)
    assert [(row.node, row.score) for row in found.rows] == [("c", 3), ("d", 2)] and found.more
    assert answers.arrays.name(int(answers.arrays.dst[int(found.rows[0].edge)])) == "c"


def test_what_lies_near_a_node_comes_in_order_and_without_itself() -> None:
    answers = large([("loss_spike", "CAUSES", "loss_up2"), ("loss_up2", "CAUSES", "clip_spike")])
    found = asked(answers, op="ppr", node="loss_spike")
    assert [row.node for row in found.rows] == ["loss_up2", "clip_spike"]
    assert 1 > found.rows[0].score > found.rows[1].score > 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"op": "neighbors", "node": "los"}, "no node 'los'; near it in the alphabet are .*'loss_spike'"),
        ({"op": "path", "node": "loss_spike", "to": "?"}, "no node '\\?'"),
        ({"op": "neighbors", "node": "loss_spike", "relations": ["X"]}, "no relation 'X'; it has NEAR"),
        ({"op": "ppr", "node": "loss_spike", "direction": "in"}, "in the direction both or out"),
    ],
)
def test_what_is_not_there_is_said(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(large([("loss_spike", "NEAR", "Rate_up2")]), **values)


def test_a_search_ranks_by_words_and_then_the_shortest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = large([("loss_spike", "NEAR", "Rate_up2")])
    assert [row.node for row in asked(answers, op="search", node="rate UP2").rows] == [
        "Rate_up2", "clip_up2", "loss_up2", "Rate_spike", "Rate_über",
    ]  # fmt: skip
    assert asked(answers, op="search", node="pike").rows == ()
    monkeypatch.setattr("oven_kg.reasoning.large_query.CANDIDATES", 2)
    found = asked(answers, op="search", node="rate")
    assert [row.node for row in found.rows] == ["Rate_up2", "Rate_spike"] and found.more


@settings(max_examples=60, deadline=None)
@given(st.sets(st.text(alphabet="aAbZz09_ -é世", min_size=1, max_size=12), min_size=1, max_size=12))
def test_the_index_has_each_word_of_each_name(names: set[str]) -> None:
    builder = Builder()
    builder.declare(sorted(names))
    arrays = builder.finish()
    index = WordIndex(arrays)
    for word in {word for name in names for word in split(name)}:
        assert arrays.names(index.nodes(word)) == sorted(name for name in names if word in split(name))


@settings(max_examples=30, deadline=None)
@given(TRIPLES)
def test_the_scores_of_tokens_are_those_of_the_same_graph_as_a_small_one(triples: list[Triple]) -> None:
    from oven_kg.token_prior.label_scores import node_importance, token_scores, words
    from oven_kg.token_prior.large_prior import name_scores

    def letters(text: str) -> list[int]:
        return [ord(letter) for letter in text if letter.isascii()]

    kept = list(dict.fromkeys(triples))
    expected = token_scores(node_importance(NAMES, kept), lambda node: words(node, ""), letters)
    found = name_scores(large(triples).arrays, letters)
    assert found == pytest.approx(expected, abs=1e-7)


def test_a_graph_without_nodes_answers_in_a_sentence() -> None:
    empty = LargeAnswers(Builder().finish())
    assert asked(empty, op="search", node="loss").rows == ()
    with pytest.raises(ConfigError, match="no node 'a'"):
        asked(empty, op="ppr", node="a")
    with pytest.raises(ConfigError, match="no token of the vocabulary is in a label"):
        empty.endpoints["token_prior"][1](TokenPriorRequest(method="kg", vocabulary=("a",)))
    empty.prepare()


def test_prerequisites_are_the_large_graphs_however_far_and_the_small_graph_is_not_asked() -> None:
    chain = [("loss_up2", "REQUIRES", "Rate_up2"), ("Rate_up2", "REQUIRES", "clip_up2")]
    answers = Answers(small([("loss_spike", "REQUIRES", "loss_up2")]), large=large(chain))
    mastery = [
        {"topic": "loss_up2", "successes": 5, "failures": 5},
        {"topic": "clip_up2", "successes": 0, "failures": 10},
        {"topic": "loss_spike", "successes": 5, "failures": 5},
        {"topic": "no such node", "successes": 1, "failures": 1},
    ]
    found = answers.endpoints["curriculum"][1](CurriculumRequest.model_validate({"mastery": mastery}))
    assert found.graph == answers.large.sha != answers.graph.sha  # type: ignore[union-attr,attr-defined]
    assert [(short.topic, short.path) for short in found.unmet] == [  # type: ignore[attr-defined]
        ("loss_up2", ("loss_up2", "Rate_up2", "clip_up2"))
    ]
    assert found.known == 1  # type: ignore[attr-defined]


def test_each_answer_is_under_the_hash_of_its_graph() -> None:
    answers = Answers(small([("loss_spike", "CAUSES", "loss_up2")]), large=large([("loss_spike", "NEAR", "Rate_up2")]))
    info = answers("info", b'{"v":1,"type":"GraphInfoRequest"}')
    assert info is not None and answers.large is not None
    assert answers.graph.sha in info.decode() and f'"large":"{answers.large.sha}"' in info.decode()
    assert "large" not in (Answers(answers.graph)("info", b'{"type":"GraphInfoRequest"}') or b"").decode()
    held: GraphArrays = answers.large.arrays
    assert held.sha == answers.large.sha

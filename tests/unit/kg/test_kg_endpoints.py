"""Curricula, token priors, queries, and the commands that ask for them."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kg.test_kg_commands import output

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import (
    Curriculum,
    CurriculumRequest,
    GraphQuery,
    QueryAnswer,
    TokenPrior,
    TokenPriorRequest,
)
from oven_core.protocol.token_prior_format import MAX_BYTES, decode, encode, vocabulary_sha
from oven_kg.checked_graph import load
from oven_kg.reasoning.curriculum import curriculum, lower_bound, requirements
from oven_kg.reasoning.query import query
from oven_kg.token_prior.label_scores import label_scores
from oven_kg.token_prior.token_prior_endpoint import token_prior

GRAPH = load()
TOPICS = st.sampled_from("abcdef")


def shares(mastery: dict[str, tuple[float, float]], *needs: tuple[str, str], **more: object) -> Curriculum:
    rows = [{"topic": topic, "successes": s, "failures": f} for topic, (s, f) in mastery.items()]
    request = CurriculumRequest.model_validate({"mastery": rows, "prerequisites": needs, "floor": 0.1, **more})
    return curriculum(GRAPH.sha, requirements(GRAPH), request)


def prior(request: TokenPriorRequest) -> TokenPrior:
    return token_prior(GRAPH.sha, partial(label_scores, GRAPH), request)


def test_a_half_mastered_topic_gets_the_largest_share() -> None:
    answer = shares({"known": (98, 2), "half": (50, 50), "new": (2, 98)}).weights
    assert answer["half"] > 5 * answer["known"] and answer["known"] == pytest.approx(answer["new"])


def test_a_topic_with_an_unmastered_prerequisite_waits_and_names_the_path() -> None:
    mastery = {"add": (5.0, 95.0), "multiply": (50.0, 50.0), "divide": (50.0, 50.0)}
    answer = shares(mastery, ("multiply", "add"), ("divide", "multiply"))
    assert [short.path for short in answer.unmet] == [
        ("divide", "multiply"),
        ("divide", "multiply", "add"),
        ("multiply", "add"),
    ]
    assert answer.weights == pytest.approx({"add": 0.9 + 0.1 / 3, "multiply": 0.1 / 3, "divide": 0.1 / 3})
    learnt = shares({**mastery, "add": (95, 5), "multiply": (80, 20)}, ("multiply", "add"), ("divide", "multiply"))
    assert learnt.unmet == () and learnt.weights["divide"] > learnt.weights["multiply"]


@given(
    st.dictionaries(TOPICS, st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1),
    st.lists(st.tuples(TOPICS, TOPICS), max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_shares_sum_to_one_and_every_topic_has_its_floor(
    mastery: dict[str, tuple[float, float]], needs: list[tuple[str, str]], threshold: float, floor: float
) -> None:
    answer = shares(mastery, *needs, threshold=threshold, floor=floor)
    assert math.fsum(answer.weights.values()) == pytest.approx(1) and set(answer.weights) == set(mastery)
    assert min(answer.weights.values()) >= floor / len(mastery) - 1e-9
    assert answer == shares(dict(reversed(mastery.items())), *needs[::-1], threshold=threshold, floor=floor)
    for short in answer.unmet:
        request = CurriculumRequest.model_validate(
            {"mastery": [{"topic": "x", "successes": s, "failures": f} for s, f in [mastery[short.path[-1]]]]}
        )
        assert short.bound == pytest.approx(lower_bound(request.mastery[0])) and short.bound < threshold + 1e-9


scored = st.dictionaries(st.integers(0, 59_999), st.floats(-50, 50, width=32), min_size=1, max_size=400)


@settings(deadline=None)
@given(scored)
def test_an_encoded_prior_is_accurate_to_half_a_level_and_fits_a_kilobyte(scores: dict[int, float]) -> None:
    blob = encode(scores, 60_000, "ab" * 32)
    answer = decode(blob, 60_000, "ab" * 32)
    assert len(blob) <= MAX_BYTES and set(answer) <= set(scores)
    if len(scores) <= 358:
        assert set(answer) == set(scores)
    kept_scores = [scores[id_] for id_ in answer]
    level = (max(kept_scores) - min(kept_scores)) / 15
    assert all(abs(answer[id_] - scores[id_]) <= level / 2 + 1e-4 for id_ in answer)
    assert min(kept_scores) >= max((score for id_, score in scores.items() if id_ not in answer), default=-math.inf)


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(0, 40), st.integers(0, 255))
def test_a_damaged_prior_is_refused_or_yields_valid_tokens(noise: bytes, position: int, byte: int) -> None:
    good = bytearray(encode({1: 0.5, 7: 1.0, 90: -2.0}, 100, "ab" * 32))
    good[position % len(good)] = byte
    for blob in (noise, bytes(good), bytes(good[: position + 20])):
        with contextlib.suppress(ConfigError):
            assert all(0 <= id_ < 100 for id_ in decode(blob, 100, "ab" * 32))


def test_a_prior_for_another_tokenizer_is_refused() -> None:
    words = ["loss", " rate", "x"]
    answer = prior(TokenPriorRequest(vocabulary=tuple(words), counts=(5, 3, 2)))
    blob = base64.b64decode(answer.blob)
    assert len(blob) == answer.bytes and answer.tokens == 3 and "0.127" in answer.ablation
    read = decode(blob, 3, vocabulary_sha(words))
    assert read[0] == pytest.approx(math.log(0.5)) and read[2] == pytest.approx(math.log(0.2))
    for size, sha in ((3, vocabulary_sha(["loss", " rate", "y"])), (4, vocabulary_sha(words))):
        with pytest.raises(ConfigError, match="the token prior is for a vocabulary of 3 tokens with SHA-256"):
            decode(blob, size, sha)


def test_a_graphs_prior_scores_its_words_and_states_what_was_measured() -> None:
    vocabulary = (*"abcdefghijklmnopqrstuvwxyz", " loss", "loss", " rate", "zebra")
    answer = prior(TokenPriorRequest(method="kg", vocabulary=vocabulary))
    scores = decode(base64.b64decode(answer.blob), len(vocabulary), vocabulary_sha(vocabulary))
    assert {vocabulary.index(" loss"), vocabulary.index(" rate")} <= set(scores)
    assert vocabulary.index("zebra") not in scores and "no effect" in answer.ablation


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"counts": (1, 2)}, "vocabulary_sha is ''"),
        ({"counts": (0, 0), "vocabulary_sha": "ab" * 32}, "needs `counts`"),
        ({"counts": (1, -2), "vocabulary_sha": "ab" * 32}, "at least 0"),
        ({"vocabulary": ("a",), "counts": (1, 2)}, "1 tokens and 2 counts"),
        ({"method": "kg", "counts": (1,), "vocabulary_sha": "ab" * 32}, "needs `vocabulary`"),
        ({"method": "kg", "vocabulary": ("\u0416",)}, "no token of the vocabulary is in a label"),
    ],
)
def test_a_prior_request_with_missing_fields_is_refused(request_fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prior(TokenPriorRequest.model_validate(request_fields))


def ask(op: str, node: str, to: str = "", limit: int = 200) -> QueryAnswer:
    return query(GRAPH, GraphQuery.model_validate({"op": op, "node": node, "to": to, "limit": limit}))


def test_neighbours_are_the_other_ends_of_a_nodes_edges() -> None:
    rows = ask("neighbors", "weight_decay_too_high").rows
    assert ("weights_shrink", "out") in {(row.node, row.towards) for row in rows}
    assert ("lower_weight_decay", "in") in {(row.node, row.towards) for row in rows}
    assert {"weight_decay_too_high"} <= {GRAPH.edges[row.edge].src for row in rows if row.towards == "out"}
    few = ask("neighbors", "weight_decay_too_high", limit=2)
    assert len(few.rows) == 2 and few.more


def test_a_path_connects_its_ends() -> None:
    rows = ask("path", "weights_shrink", "rollback_and_lower_decay").rows
    assert [row.node for row in rows] == ["weights_shrink", "weight_decay_too_high", "rollback_and_lower_decay"]
    assert [row.towards for row in rows] == ["", "in", "in"]


def test_ppr_agrees_with_an_exact_walk() -> None:
    rows = ask("ppr", "weights_shrink", limit=10).rows
    edges = {(*sorted(ends[:2]), ends[2]) for ends in GRAPH.network.edges(keys=True)}
    degree = Counter(end for src, dst, _ in edges for end in (src, dst))
    exact: dict[str, float] = {"weights_shrink": 1.0}
    for _ in range(300):
        after = defaultdict(float, weights_shrink=0.15)
        for src, dst, _ in edges:
            after[dst] += 0.85 * exact.get(src, 0.0) / degree[src]
            after[src] += 0.85 * exact.get(dst, 0.0) / degree[dst]
        exact = dict(after)
    del exact["weights_shrink"]
    wanted = sorted(exact, key=lambda node: -exact[node])[:10]
    assert len({row.node for row in rows} & set(wanted)) >= 9
    assert all(abs(row.score - exact[row.node]) < 2e-3 for row in rows)


def test_search_finds_words_and_a_misspelt_node_gets_a_suggestion() -> None:
    assert "weight_decay" in ask("search", "weight decay").rows[0].node
    assert ask("search", "zebra").rows == ()
    with pytest.raises(UnknownNameError, match="did you mean 'loss_spike'"):
        ask("ppr", "los_spike")


def test_the_commands_for_people_and_scripts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = output(capsys, "curriculum", "add=5/100", "multiply=50/100", "--needs", "multiply:add")
    assert "not ready: multiply builds on add, whose mastery is" in out and "add" in out.splitlines()[0]
    assert json.loads(output(capsys, "curriculum", "loss_spike=5/100", "--json"))["weights"] == {"loss_spike": 1.0}
    assert "← SOLVES ←" in output(capsys, "query", "path", "weights_shrink", "rollback_and_lower_decay")
    assert json.loads(output(capsys, "query", "search", "decay", "--limit", "1", "--json"))["more"]
    vocabulary, corpus, blob = tmp_path / "v.json", tmp_path / "ids.txt", tmp_path / "prior.bin"
    vocabulary.write_text(json.dumps(["a", " loss", "b"]))
    corpus.write_text("0 0 1\n2 0")
    assert "3 tokens in" in output(capsys, "token-prior", str(vocabulary), "--corpus", str(corpus), "--to", str(blob))
    assert decode(blob.read_bytes(), 3, vocabulary_sha(["a", " loss", "b"]))[0] == pytest.approx(math.log(0.6))
    assert json.loads(output(capsys, "token-prior", str(vocabulary), "--method", "kg", "--json"))["method"] == "kg"

"""What outcomes teach: the same in any order and however often they come, forgotten by their own clock, and scoped."""

from __future__ import annotations

import json
import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import DiagnoseRequest as Ask
from oven_core.protocol.graph_requests import (
    Diagnosis,
    GraphInfo,
    GraphInfoRequest,
    OutcomeReport,
    OutcomeTaken,
    Remedy,
    Symptom,
)
from oven_kg.checked_graph import load
from oven_kg.reasoning import posteriors as module
from oven_kg.reasoning.posteriors import PSEUDO, Posteriors
from oven_kg.service.endpoints import POSTERIORS, Answers, answers

BACK, CUT, BOTH = ("run.rollback",), ("optimizer.lr_scale:down",), ("run.rollback", "optimizer.lr_scale:down")
SYMPTOMS = ("loss_spike", "grad_norm_spike", "policy_collapse", "weights_shrink", "of_nobody")


def report(id_: str, changes: tuple[str, ...] = BACK, success: float = 1.0, **more: object) -> OutcomeReport:
    named = more.pop("symptoms", ("loss_spike",))
    body = {"id": id_, "changes": changes, "success": success, "symptoms": [{"id": id_} for id_ in named], **more}  # type: ignore[attr-defined]
    return OutcomeReport.model_validate(body)


def remedies(held: Answers, *symptoms: str, **more: object) -> dict[str, Remedy]:
    asked = Ask.model_validate({"symptoms": [{"id": id_} for id_ in symptoms], "k": 50, **more})
    answer = held("diagnose", asked.wire())
    assert answer is not None
    return {remedy.id: remedy for remedy in Diagnosis.model_validate_json(answer).remedies}


reports = st.lists(
    st.builds(
        report,
        st.sampled_from("abcdefgh"),
        st.sampled_from([BACK, CUT, BOTH, BOTH[::-1], ("teacher.active",)]),
        st.floats(0, 1),
        symptoms=st.lists(st.sampled_from(SYMPTOMS), min_size=1, max_size=3, unique=True),
        phase=st.sampled_from(["", "pretrain", "grpo"]),
        parameters=st.sampled_from([0, 900, 12_000]),
        at=st.integers(0, 50),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(reports, st.randoms(use_true_random=False), st.integers(0, 20), st.booleans())
def test_neither_order_nor_repetition_shows(
    told: list[OutcomeReport], rng: random.Random, half_life: int, few: bool
) -> None:
    again = [*told, *rng.choices(told, k=5)] if told else []
    rng.shuffle(again)
    with patch.object(module, "LIMIT", 3 if few else 100):
        one, other = Posteriors(half_life=half_life).with_(*told), Posteriors(half_life=half_life)
        for each in again:
            other = other.with_(each)
    assert one.body == other.body and one.sha == other.sha
    mine, theirs = Answers(load(), one), Answers(load(), other)
    question = Ask(symptoms=(Symptom(id="loss_spike"), Symptom(id="policy_collapse")), phase="grpo", k=50).wire()
    assert mine("diagnose", question) == theirs("diagnose", question)
    assert Posteriors.load(one.body).body == one.body


def test_of_two_reports_with_one_id_the_later_counts_whichever_comes_first() -> None:
    early, late = report("a", success=0.1, at=1), report("a", success=0.9, at=2)
    assert Posteriors().with_(early, late).reports == Posteriors().with_(late, early).reports == {"a": late}


def test_success_raises_a_remedy_and_failure_lowers_it_for_its_causes_and_for_these_symptoms() -> None:
    before = remedies(Answers(load()), "loss_spike")["rollback"]
    scores = {}
    for success in (0.0, 1.0):
        held = Answers(load())
        held.take(*(report(f"r{n}", success=success) for n in range(20)))
        scores[success] = remedies(held, "loss_spike")["rollback"].score
        assert remedies(held, "loss_spike")["rollback"].observations == 20
    assert scores[0.0] < 0.2 * before.score < before.score < scores[1.0]
    # Other symptoms with the same causes: what was learnt reaches them by the causes (back-off), and less of it.
    elsewhere = remedies(held, "loss_spike", "gradients_opposed")["rollback"]
    assert (
        remedies(Answers(load()), "loss_spike", "gradients_opposed")["rollback"].score < elsewhere.score < scores[1.0]
    )


def test_an_edges_strength_is_its_beta() -> None:
    """One outcome, by hand: P(c | symptoms) · (r − u) beside n₀ · s, where u is (10 + r) / 21: twenty at even odds."""
    held = Answers(load())
    p = {cause.id: cause.p for cause in _diagnosis(held, "weights_shrink").causes}["weight_decay_too_high"]
    edge = next(edge for edge in load().out_of("lower_weight_decay", "SOLVES") if edge.dst == "weight_decay_too_high")
    held.take(report("a", ("optimizer.weight_decay:down",), 0.25, symptoms=("weights_shrink",)))
    n0 = PSEUDO[edge.grade]
    usual = (10 + 0.25) / 21
    assert held.learnt_for("", 0).strength(edge) == pytest.approx(edge.strength + p * (0.25 - usual) / (n0 + p))
    assert n0 <= 10


def test_a_remedy_that_does_as_well_as_the_usual_keeps_its_place_beside_those_that_were_never_tried() -> None:
    held, before = Answers(load()), remedies(Answers(load()), "loss_spike")
    held.take(*(report(f"{n}", success=0.5) for n in range(30)))
    assert remedies(held, "loss_spike")["rollback"].score == pytest.approx(before["rollback"].score)


def test_a_wrong_prior_is_overtaken() -> None:
    """The graph's first remedy fails every time, its third works: twelve outcomes of each turn the ranking round."""
    held = Answers(load())
    first = list(remedies(held, "policy_collapse", phase="grpo"))
    assert first[0] == "rollback_and_cut"
    held.take(*(report(f"no{n}", BOTH, 0.0, symptoms=("policy_collapse",), phase="grpo") for n in range(12)))
    held.take(*(report(f"yes{n}", CUT, 1.0, symptoms=("policy_collapse",), phase="grpo") for n in range(12)))
    assert next(iter(remedies(held, "policy_collapse", phase="grpo"))) == "lower_lr"


def test_forgetting_goes_by_the_reports_own_clock() -> None:
    old, new = report("old", success=0.0, at=0), report("new", success=1.0, at=100)
    weights = {r.id: weight for r, weight in Posteriors(half_life=50).with_(new, old).weights("", 0)}
    assert weights == {"new": 1.0, "old": 0.25}
    assert {w for _, w in Posteriors().with_(new, old).weights("", 0)} == {1.0}, "0: nothing is forgotten"


def test_outcomes_count_in_their_phase_and_decade() -> None:
    held = Posteriors().with_(report("a", phase="grpo", parameters=5_000), report("b"))
    assert [r.id for r, _ in held.weights("grpo", 9_999)] == ["a", "b"]
    assert [r.id for r, _ in held.weights("pretrain", 0)] == ["b"]
    assert [r.id for r, _ in held.weights("", 50_000)] == ["b"]
    assert [r.id for r, _ in held.weights("", 0)] == ["a", "b"]


def test_answers_cite_what_was_learnt_and_a_restart_loses_nothing() -> None:
    held = answers()
    before = GraphInfo.model_validate_json(held("info", GraphInfoRequest().wire()) or b"")
    assert (before.posteriors, before.outcomes) == ("", 0)
    taken = OutcomeTaken.model_validate_json(held("outcome", report("a", BOTH).wire()) or b"")
    assert taken.new and taken.outcomes == 1 and taken.remedies == ("rollback_and_cut",)
    assert not OutcomeTaken.model_validate_json(held("outcome", report("a", BOTH).wire()) or b"").new
    again = answers(posteriors=held(POSTERIORS, b""))
    question = Ask(symptoms=(Symptom(id="loss_spike"),)).wire()
    assert held("diagnose", question) == again("diagnose", question)
    assert Diagnosis.model_validate_json(again("diagnose", question) or b"").posteriors == taken.posteriors


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"v": 2, "half_life": 0, "reports": []}',
        b'{"v": 1, "half_life": -1, "reports": []}',
        b'{"v": 1, "half_life": 0, "reports": [{"id": "a"}]}',
        b"[" * 100000,
        b'{"v": 1, "half_life": 0}',
    ],
)
def test_what_are_no_posteriors_is_refused(body: bytes) -> None:
    with pytest.raises(ConfigError, match="these are not posteriors"):
        Posteriors.load(body)


def test_the_body_is_canonical() -> None:
    body = Posteriors().with_(report("b", BOTH), report("a")).body
    assert json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode() == body


def _diagnosis(held: Answers, symptom: str) -> Diagnosis:
    return Diagnosis.model_validate_json(held("diagnose", Ask(symptoms=(Symptom(id=symptom),)).wire()) or b"")

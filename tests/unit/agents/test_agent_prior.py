"""What an agent asks of the graph, and what becomes of the answer, without a bus."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.gauges import started

from oven_agents import Knob
from oven_agents.runtime.kg_client import (
    HEADER_BYTES,
    MAX_EVIDENCE,
    answer_requests,
    citation,
    consultation,
    judge_request,
)
from oven_agents.sdk.alternative_plans import GraphReview, without_graph
from oven_core.bus.streams import VOTE_BYTES
from oven_core.protocol.evidence import Signal, read_signal
from oven_core.protocol.graph_requests import Diagnosis, EvidencePath, Judgement
from oven_core.protocol.messages import BallotOpened, Message, RunStarted, Value, Vote
from oven_core.protocol.rules import Rules

LR = "optimizer.lr_scale"
PATH = EvidencePath(
    edges=("C001", "S001"), text="loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr", grade="D", sources=("a", "b")
)
AGAINST = EvidencePath(edges=("W001",), text="loss_spike ← WORSENS ← raise_lr", grade="C", sources=("practice",))
CAUSE = {"id": "lr_too_high", "p": 0.62}


def knobs(run: RunStarted) -> dict[str, Knob]:
    return {spec.name: Knob(spec, spec.value) for spec in run.actuators}


def ballot(value: Value, actuator: str = LR, evidence: tuple[str, ...] = ()) -> BallotOpened:
    return BallotOpened(
        id="7", actuator=actuator, proposal=value, opened_by="lr", evidence=evidence, tick=3, closes_at_tick=6,
        eligible=("graph", "lr"),
    )  # fmt: skip


def judgement(verdict: str = "support", **more: object) -> Judgement:
    return Judgement.model_validate({"graph": "ab" * 32, "verdict": verdict, "log_odds": 0.5, **more})


def reviewed(replies: Mapping[str, Message | bytes | None], evidence: tuple[str, ...] = ()) -> list[Vote]:
    """Return the graph's votes on a cut of the rate if its service sends these replies, by endpoint."""

    def ask(endpoint: str, request: bytes) -> bytes | None:
        reply = replies.get(endpoint)
        return reply.wire() if isinstance(reply, Message) else reply

    run = started()
    requests = consultation(GraphReview(ballot(0.25, evidence=evidence), 4), run, knobs(run), [], lambda _: None)
    messages = answer_requests(requests, ask)
    assert all(isinstance(message, Vote) for message in messages)
    return [message for message in messages if isinstance(message, Vote)]


def test_a_question_has_the_change_the_symptoms_and_the_runs_actuators() -> None:
    run = started()
    opened = ballot(0.25, evidence=("symptom:loss_spike", "a note", "symptom:loss_spike", "symptom:loss_nan"))
    request = judge_request(opened, run, knobs(run), ["run.rollback"])
    assert (request.changes, request.phase) == ("optimizer.lr_scale:down", "grpo")
    assert [symptom.id for symptom in request.symptoms] == ["loss_spike", "loss_nan"]
    assert request.actuators == (LR, "run.rollback", "data.mixture") and "reward/len3" in request.metrics
    assert request.in_flight == ("run.rollback",) and not request.held_out


def test_the_graph_supports_with_its_paths_and_the_most_likely_cause() -> None:
    diagnosis = Diagnosis.model_validate({"graph": "ab" * 32, "causes": [CAUSE], "remedies": []})
    replies = {"judge": judgement(supports=(PATH,)), "diagnose": diagnosis}
    (vote,) = reviewed(replies, evidence=("symptom:loss_spike",))
    assert (vote.stance, vote.actuator, vote.ballot, vote.tick) == ("for", LR, "7", 4)
    assert vote.confidence == pytest.approx(0.622, abs=0.001)
    assert vote.rationale == f"{PATH.text} (most likely cause: lr_too_high, belief 0.62)"
    assert read_signal(vote.evidence) == Signal("graph", ())
    assert vote.evidence[1:] == ("kg:abababababab", citation(PATH))


def test_the_graph_vetoes_only_a_barred_change() -> None:
    (veto,) = reviewed({"judge": judgement("barred", log_odds=0.0)})
    assert (veto.stance, veto.rationale) == ("against", "a precondition is not met")
    assert veto.confidence >= Rules().veto_confidence
    (objection,) = reviewed({"judge": judgement("object", log_odds=-2.0, objections=(AGAINST,))})
    assert (objection.stance, objection.rationale) == ("against", AGAINST.text)
    assert objection.confidence < Rules().veto_confidence
    assert objection.evidence[-1] == citation(AGAINST)


@pytest.mark.parametrize("reply", [judgement("neutral", log_odds=0.0), None, b"not JSON"])
def test_the_graph_abstains_without_an_opinion_or_a_valid_reply(reply: Judgement | bytes | None) -> None:
    assert reviewed({"judge": reply}, evidence=("symptom:loss_spike",)) == []


def test_the_graph_abstains_if_no_service_is_reachable() -> None:
    review = GraphReview(ballot(0.25), 4)
    assert without_graph([review]) == []
    assert answer_requests(consultation(review, None, {}, [], lambda _: None), lambda *_: None) == []


def test_a_missing_diagnosis_only_omits_the_cause() -> None:
    (vote,) = reviewed({"judge": judgement(supports=(PATH,))}, evidence=("symptom:loss_spike",))
    assert vote.rationale == PATH.text


def test_long_texts_of_the_graph_fit_into_a_vote() -> None:
    long = PATH.model_copy(update={"text": "ü" * 5000})
    (vote,) = reviewed({"judge": judgement(supports=(PATH, long, long, *(PATH,) * 60))})
    assert len(vote.rationale) <= 400 and vote.evidence[2] == citation(PATH)
    assert len(vote.evidence) <= MAX_EVIDENCE and len(vote.wire()) <= VOTE_BYTES - HEADER_BYTES
    (vote,) = reviewed({"judge": judgement(supports=(PATH,) * 60)})
    assert len(vote.evidence) == MAX_EVIDENCE

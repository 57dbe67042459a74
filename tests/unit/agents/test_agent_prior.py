"""What an agent asks of the graph, and what becomes of the answer, without a bus."""

from __future__ import annotations

from tests.support.gauges import started

from oven_agents import Knob
from oven_agents.runtime.kg_client import HEADER_BYTES, MAX_EVIDENCE, citation, judge_request, with_sources
from oven_core.bus.streams import VOTE_BYTES
from oven_core.protocol.graph_requests import EvidencePath, Judgement
from oven_core.protocol.messages import RunStarted, Value, Vote

LR = "optimizer.lr_scale"
PATH = EvidencePath(
    edges=("C001", "S001"), text="loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr", grade="D", sources=("a", "b")
)
AGAINST = EvidencePath(edges=("W001",), text="loss_spike ← WORSENS ← raise_lr", grade="C", sources=("practice",))


def knobs(run: RunStarted) -> dict[str, Knob]:
    return {spec.name: Knob(spec, spec.value) for spec in run.actuators}


def proposal(value: Value, actuator: str = LR, evidence: tuple[str, ...] = ()) -> Vote:
    return Vote(actuator=actuator, stance="propose", value=value, tick=3, confidence=0.9, evidence=evidence)


def judgement(verdict: str = "support", **more: object) -> Judgement:
    return Judgement.model_validate({"graph": "ab" * 32, "verdict": verdict, "log_odds": 0.5, **more})


def test_a_question_has_the_change_the_symptoms_and_the_runs_actuators() -> None:
    run = started()
    vote = proposal(0.25, evidence=("symptom:loss_spike", "a note", "symptom:loss_spike", "symptom:loss_nan"))
    request = judge_request(vote, run, knobs(run), ["run.rollback"])
    assert (request.changes, request.phase) == ("optimizer.lr_scale:down", "grpo")
    assert [symptom.id for symptom in request.symptoms] == ["loss_spike", "loss_nan"]
    assert request.actuators == (LR, "run.rollback", "data.mixture") and "reward/len3" in request.metrics
    assert request.in_flight == ("run.rollback",) and not request.held_out


def test_the_graphs_paths_follow_the_votes_own_evidence() -> None:
    vote = proposal(0.25, evidence=("symptom:loss_spike",))
    cited_vote = with_sources(vote, judgement(supports=(PATH,), objections=(AGAINST,)))
    assert cited_vote.evidence == (
        "symptom:loss_spike",
        "kg:abababababab",
        "for: loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; a b]",
        "against: loss_spike ← WORSENS ← raise_lr [W001; C; practice]",
    )
    assert cited_vote.model_copy(update={"evidence": vote.evidence}) == vote


def test_a_votes_limits_hold_whatever_the_graph_says() -> None:
    full = proposal(0.25, evidence=tuple(f"note {n}" for n in range(MAX_EVIDENCE)))
    assert with_sources(full, judgement(supports=(PATH,))) == full
    nearly = proposal(0.25, evidence=tuple(f"note {n}" for n in range(MAX_EVIDENCE - 2)))
    assert len(with_sources(nearly, judgement(supports=(PATH,) * 9)).evidence) == MAX_EVIDENCE
    long = PATH.model_copy(update={"text": "ü" * 5000})
    cited_vote = with_sources(proposal(0.25), judgement(supports=(PATH, long, long)))
    assert cited_vote.evidence[1] == f"for: {citation(PATH)}" and len(cited_vote.evidence) == 3
    assert len(cited_vote.wire()) <= VOTE_BYTES - HEADER_BYTES
    huge = proposal(0.25, evidence=("x" * VOTE_BYTES,))
    assert with_sources(huge, judgement(supports=(PATH,))) == huge

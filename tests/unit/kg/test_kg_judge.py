"""A proposed change against the graph: support, objection, and the two things that bar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kg.test_kg_diagnose import GRAPH, SYMPTOMS, exists

from oven_core.protocol.graph_requests import Judgement, JudgeRequest, Symptom
from oven_kg.reasoning.diagnosis import MAX_LOG_ODDS, judge

UP, DOWN = "optimizer.lr_scale:up", "optimizer.lr_scale:down"
RUN = {
    "phase": "grpo",
    "actuators": ("optimizer.lr_scale", "run.rollback", "data.mixture", "grpo.beta"),
    "metrics": ("reward", "reward/len3", "kl", "eval/accuracy"),
    "held_out": True,
}


def ask(changes: str, *symptoms: str, **more: object) -> Judgement:
    asked_symptoms = [Symptom(id=id_) for id_ in symptoms]
    return judge(GRAPH, JudgeRequest.model_validate({**RUN, "changes": changes, "symptoms": asked_symptoms, **more}))


@pytest.mark.parametrize(
    ("changes", "symptoms", "verdict"),
    [
        (UP, ("gradients_aligned",), "support"),
        (DOWN, ("gradients_aligned",), "object"),
        (DOWN, ("gradients_opposed",), "support"),
        (UP, ("gradients_opposed",), "object"),
        (UP, ("loss_spike",), "object"),
        (UP, ("loss_nan", "policy_collapse"), "object"),
        ("run.rollback", ("policy_collapse",), "support"),
        (DOWN, ("policy_collapse",), "support"),
        ("data.mixture", ("starved_level",), "support"),
        ("grpo.beta:down", ("kl_anchor_binds",), "support"),
        ("grpo.beta:up", ("kl_anchor_binds",), "object"),
        ("grpo.beta:down", ("kl_runaway",), "object"),
        ("run.rollback", ("reward_at_ceiling",), "object"),
        ("run.stop", ("policy_collapse",), "neutral"),
        (UP, (), "neutral"),
        (UP, ("bad_mood",), "neutral"),
        ("optimizer.momentum:up", ("loss_spike",), "neutral"),
        ("optimizer.lr_scale", ("loss_spike",), "neutral"),  # without a direction it is neither
    ],
)
def test_verdicts(changes: str, symptoms: tuple[str, ...], verdict: str) -> None:
    judgement = ask(changes, *symptoms)
    assert judgement.verdict == verdict, judgement
    assert (judgement.verdict == "neutral") == (judgement.log_odds == 0)
    if verdict == "support":
        assert judgement.supports
    if verdict == "object":
        assert judgement.objections


def test_an_unmet_need_bars_and_is_named() -> None:
    assert ask("data.mixture", "starved_level", held_out=False).verdict == "barred"
    judgement = ask("grpo.beta:down", "kl_anchor_binds", metrics=("reward",))
    assert judgement.verdict == "barred" and judgement.log_odds > 0, "how good it would be does not count"
    assert [path.text for path in judgement.objections] == ["lower_beta → REQUIRES → metric:kl (unmet)"]
    assert ask("grpo.beta:down", "kl_anchor_binds", metrics=(), actuators=()).verdict == "support"


def test_a_contradiction_bars_while_it_is_in_flight() -> None:
    judgement = ask(UP, "gradients_aligned", in_flight=("run.rollback",))
    assert judgement.verdict == "barred"
    assert judgement.objections[0].text == "rollback → CONTRADICTS → raise_lr (run.rollback is in flight)"
    assert ask("run.rollback", "policy_collapse", in_flight=(UP,)).verdict == "barred"
    assert ask("run.rollback", "policy_collapse", in_flight=(DOWN,)).verdict == "support"
    assert ask(DOWN, "policy_collapse", in_flight=("run.rollback", "data.mixture")).verdict == "support"


def test_a_remedy_of_several_changes_counts_only_if_the_run_has_all_actuators() -> None:
    whole = ask(DOWN, "policy_collapse")
    part = ask(DOWN, "policy_collapse", actuators=("optimizer.lr_scale",))
    assert whole.log_odds > part.log_odds > 0
    assert "with" in whole.supports[0].text and "with" not in part.supports[0].text


CHANGES = sorted({change for node in GRAPH.nodes_of_kind("remedy") for change in node.changes})


@given(
    st.sampled_from(CHANGES),
    st.lists(st.sampled_from(SYMPTOMS), max_size=5),
    st.lists(st.sampled_from(CHANGES), max_size=2),
    st.booleans(),
)
def test_only_needs_and_contradictions_bar_and_every_path_exists(
    changes: str, symptoms: list[str], in_flight: list[str], held_out: bool
) -> None:
    judgement = ask(changes, *symptoms, in_flight=tuple(in_flight), held_out=held_out)
    assert -MAX_LOG_ODDS <= judgement.log_odds <= MAX_LOG_ODDS
    paths = [*judgement.supports, *judgement.objections]
    assert all(exists(GRAPH, path) for path in paths)
    barring = [w for w in paths if GRAPH.edges[w.edges[0]].relation in ("REQUIRES", "CONTRADICTS")]
    assert (judgement.verdict == "barred") == bool(barring)
    assert ask(changes, *reversed(symptoms), in_flight=tuple(reversed(in_flight)), held_out=held_out) == judgement

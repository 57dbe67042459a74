"""A proposed change against the graph: support, objection, and the two things that bar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kg.test_kg_diagnose import GRAPH, SYMPTOMS, exists

from oven_core.protocol.graph_requests import Judgement, JudgeRequest, Symptom
from oven_kg.reasoning.diagnosis import LIMIT
from oven_kg.reasoning.judgement import judge

UP, DOWN = "optimizer.lr_scale:up", "optimizer.lr_scale:down"
RUN = {
    "phase": "grpo",
    "actuators": ("optimizer.lr_scale", "run.rollback", "data.mixture", "grpo.beta"),
    "metrics": ("reward", "reward/len3", "kl", "eval/accuracy"),
    "held_out": True,
}


def ask(changes: str, *symptoms: str, **more: object) -> Judgement:
    named = [Symptom(id=id_) for id_ in symptoms]
    return judge(GRAPH, JudgeRequest.model_validate({**RUN, "changes": changes, "symptoms": named, **more}))


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
    found = ask(changes, *symptoms)
    assert found.verdict == verdict, found
    assert (found.verdict == "neutral") == (found.log_odds == 0)
    if verdict == "support":
        assert found.supports
    if verdict == "object":
        assert found.objections


def test_an_unmet_need_bars_and_says_which() -> None:
    assert ask("data.mixture", "starved_level", held_out=False).verdict == "barred"
    found = ask("grpo.beta:down", "kl_anchor_binds", metrics=("reward",))
    assert found.verdict == "barred" and found.log_odds > 0, "how good it would be does not count"
    assert [way.text for way in found.objections] == ["lower_beta → REQUIRES → metric:kl (unmet)"]
    assert ask("grpo.beta:down", "kl_anchor_binds", metrics=(), actuators=()).verdict == "support"


def test_a_need_binds_only_what_every_reason_for_the_change_has() -> None:
    assert set(GRAPH.needs("rebalance_levels")) == {"held_out", "metric:reward/*"}
    assert set(GRAPH.requirements["data.mixture"]) == {"held_out"}
    assert ask("data.mixture", metrics=("loss", "eval/loss"), phase="pretrain").verdict == "neutral"


def test_a_contradiction_bars_while_it_is_in_flight() -> None:
    found = ask(UP, "gradients_aligned", in_flight=("run.rollback",))
    assert found.verdict == "barred"
    assert found.objections[0].text == "rollback → CONTRADICTS → raise_lr (run.rollback is in flight)"
    assert ask("run.rollback", "policy_collapse", in_flight=(UP,)).verdict == "barred"
    assert ask("run.rollback", "policy_collapse", in_flight=(DOWN,)).verdict == "support"
    assert ask(DOWN, "policy_collapse", in_flight=("run.rollback", "data.mixture")).verdict == "support"


def test_a_remedy_of_several_changes_counts_only_where_the_run_can_do_the_rest() -> None:
    whole = ask(DOWN, "policy_collapse")
    part = ask(DOWN, "policy_collapse", actuators=("optimizer.lr_scale",))
    assert whole.log_odds > part.log_odds > 0
    assert "with" in whole.supports[0].text and "with" not in part.supports[0].text


CHANGES = sorted({change for node in GRAPH.of_kind("remedy") for change in node.changes})


@given(
    st.sampled_from(CHANGES),
    st.lists(st.sampled_from(SYMPTOMS), max_size=5),
    st.lists(st.sampled_from(CHANGES), max_size=2),
    st.booleans(),
)
def test_only_needs_and_contradictions_bar_and_every_path_exists(
    changes: str, symptoms: list[str], in_flight: list[str], held_out: bool
) -> None:
    found = ask(changes, *symptoms, in_flight=tuple(in_flight), held_out=held_out)
    assert -LIMIT <= found.log_odds <= LIMIT
    ways = [*found.supports, *found.objections]
    assert all(exists(GRAPH, way) for way in ways)
    barring = [w for w in ways if GRAPH.edges[w.edges[0]].relation in ("REQUIRES", "CONTRADICTS")]
    assert (found.verdict == "barred") == bool(barring)
    assert ask(changes, *reversed(symptoms), in_flight=tuple(reversed(in_flight)), held_out=held_out) == found

"""The graph's pairs as a run's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_controller.stack.kg_rules import with_graph_rules
from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import GraphInfo
from oven_core.protocol.rules import Rules
from oven_runs.settings.resolution import resolve
from oven_runs.settings.run_settings import RuleSettings

CHANGES = st.sampled_from(["run.rollback", "run.hold", "optimizer.lr_scale:up", "grpo.beta:down", "data.mixture"])
PAIRS = st.lists(st.tuples(CHANGES, CHANGES), max_size=5).map(tuple)
NEEDS = st.lists(st.tuples(CHANGES, st.sampled_from(["held_out", "metric:kl"])), max_size=5).map(tuple)


def info(contradictions: tuple[tuple[str, str], ...], requirements: tuple[tuple[str, str], ...] = ()) -> GraphInfo:
    return GraphInfo(
        graph="x", nodes={}, edges={}, isolated=0, contradictions=contradictions, requirements=requirements
    )


def test_the_users_own_rules_stay_and_pairs_are_added_once() -> None:
    rules = RuleSettings(window_ticks=7, requires=(("run.stop", "held_out"),))
    needs = (("run.stop", "held_out"), ("a", "held_out"))
    merged_rules = with_graph_rules(rules, info((("run.rollback", "run.hold"), ("a", "b")), needs))
    assert merged_rules.window_ticks == 7 and type(merged_rules) is RuleSettings
    assert merged_rules.contradictions == (*rules.contradictions, ("a", "b")), "had already, in the other order"
    assert merged_rules.requires == needs


@given(PAIRS, NEEDS, PAIRS, NEEDS)
def test_merging_keeps_what_was_there_adds_the_rest_and_is_idempotent(
    own: tuple[tuple[str, str], ...],
    needs: tuple[tuple[str, str], ...],
    added: tuple[tuple[str, str], ...],
    requirements: tuple[tuple[str, str], ...],
) -> None:
    rules = Rules(contradictions=own, requires=needs)
    once = with_graph_rules(rules, info(added, requirements))
    assert once.contradictions[: len(own)] == own
    assert {frozenset(pair) for pair in once.contradictions} == {frozenset(pair) for pair in (*own, *added)}
    assert set(once.requires) == {*needs, *requirements}
    assert with_graph_rules(once, info(added, requirements)) == once


def test_a_need_that_cannot_be_checked_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="requires 'gpu:8', which the mesh cannot check; write \"actuator:NAME\""):
        resolve(sets=['rules.requires=[["data.mixture", "gpu:8"]]'], attached=True)

"""The control of the gym: the built-in graph with permuted targets."""

from __future__ import annotations

from collections import Counter

import pytest

from oven_bench.gym.arms.controller import prior
from oven_bench.gym.arms.shuffled_graph import PERMUTED, shuffle_targets
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, Judgement, JudgeRequest, Symptom
from oven_kg.graph.graph_yaml import read
from oven_kg.graph.lint import lint

REQUEST = DiagnoseRequest(symptoms=(Symptom(id="loss_spike"),), phase="pretrain", k=50)


@pytest.mark.parametrize("seed", range(4))
def test_the_control_keeps_degrees_strengths_and_soundness_and_loses_what_it_knew(seed: int) -> None:
    true, control = read(), shuffle_targets(read(), seed)
    assert lint(control) == []
    for relation in PERMUTED:
        mine, theirs = ([edge for edge in records.edges if edge.relation == relation] for records in (true, control))
        assert Counter(edge.dst for edge in mine) == Counter(edge.dst for edge in theirs)
        assert [(edge.id, edge.src, edge.strength) for edge in mine] == [(e.id, e.src, e.strength) for e in theirs]
        kept = sum(edge.dst == other.dst for edge, other in zip(mine, theirs, strict=True)) / len(mine)
        assert kept < 1 / 3, f"{kept:.0%} of the {relation} edges point where they did"
    rest = [edge for edge in true.edges if edge.relation not in PERMUTED]
    assert rest == [edge for edge in control.edges if edge.relation not in PERMUTED]


def test_each_seed_has_its_own_control() -> None:
    controls = [shuffle_targets(read(), seed) for seed in (1, 1, 2)]
    assert controls[0] == controls[1] != controls[2] != read()


def test_the_control_ranks_otherwise_and_bars_the_same() -> None:
    true, control = prior(None), prior(3)
    mine, theirs = (Diagnosis.model_validate_json(held("diagnose", REQUEST.wire()) or b"") for held in (true, control))
    assert mine.causes == theirs.causes, "what is diagnosed is the same"
    assert [remedy.id for remedy in mine.remedies[:5]] != [remedy.id for remedy in theirs.remedies[:5]]
    asked = JudgeRequest(changes="data.mixture", symptoms=(Symptom(id="loss_spike"),), metrics=("loss",)).wire()
    assert {Judgement.model_validate_json(held("judge", asked) or b"").verdict for held in (true, control)} == {
        "barred"
    }

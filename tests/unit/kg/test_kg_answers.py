"""The endpoints without a bus, and the control with permuted targets."""

from __future__ import annotations

from collections import Counter

import pytest

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, Judgement, JudgeRequest, Symptom
from oven_kg.checked_graph import load
from oven_kg.graph.graph_yaml import read
from oven_kg.graph.lint import lint
from oven_kg.graph.randomized_control import PERMUTED, shuffled
from oven_kg.reasoning.diagnosis import diagnose
from oven_kg.reasoning.judgement import judge
from oven_kg.service.endpoints import answers

ASKED = DiagnoseRequest(symptoms=(Symptom(id="loss_spike"),), phase="pretrain", k=50)


def test_they_answer_as_the_pure_functions_do() -> None:
    held = answers()
    assert held("diagnose", ASKED.wire()) == diagnose(load(), ASKED).wire()
    asked = JudgeRequest(changes="optimizer.lr_scale:up", symptoms=(Symptom(id="loss_spike"),))
    assert held("judge", asked.wire()) == judge(load(), asked).wire()
    assert held("sing", b"{}") is None


def test_a_request_that_cannot_be_read_is_an_error_with_its_place() -> None:
    with pytest.raises(ConfigError, match="not a JudgeRequest: changes: Field required"):
        answers()("judge", b"{}")


@pytest.mark.parametrize("seed", range(4))
def test_the_control_keeps_degrees_strengths_and_soundness_and_loses_what_it_knew(seed: int) -> None:
    true, control = read(), shuffled(read(), seed)
    assert lint(control) == []
    for relation in PERMUTED:
        mine, theirs = ([edge for edge in records.edges if edge.relation == relation] for records in (true, control))
        assert Counter(edge.dst for edge in mine) == Counter(edge.dst for edge in theirs)
        assert [(edge.id, edge.src, edge.strength) for edge in mine] == [(e.id, e.src, e.strength) for e in theirs]
        kept = sum(edge.dst == other.dst for edge, other in zip(mine, theirs, strict=True)) / len(mine)
        assert kept < 1 / 3, f"{kept:.0%} of the {relation} edges point where they did"
    rest = [edge for edge in true.edges if edge.relation not in PERMUTED]
    assert rest == [edge for edge in control.edges if edge.relation not in PERMUTED]


def test_a_seed_is_a_control_and_another_seed_another() -> None:
    shas = {load(shuffled=seed).sha for seed in (1, 2)} | {load().sha}
    assert len(shas) == 3 and load(shuffled=1).sha in shas


def test_the_control_ranks_otherwise_and_bars_the_same() -> None:
    true, control = answers(), answers(shuffled=3)
    mine, theirs = (Diagnosis.model_validate_json(held("diagnose", ASKED.wire()) or b"") for held in (true, control))
    assert mine.causes == theirs.causes, "what is diagnosed is the same"
    assert [remedy.id for remedy in mine.remedies[:5]] != [remedy.id for remedy in theirs.remedies[:5]]
    asked = JudgeRequest(changes="data.mixture", symptoms=(Symptom(id="loss_spike"),), metrics=("loss",)).wire()
    assert {Judgement.model_validate_json(held("judge", asked) or b"").verdict for held in (true, control)} == {
        "barred"
    }

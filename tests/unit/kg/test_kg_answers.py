"""The endpoints without a bus."""

from __future__ import annotations

import pytest

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import DiagnoseRequest, JudgeRequest, Symptom
from oven_kg.checked_graph import load
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

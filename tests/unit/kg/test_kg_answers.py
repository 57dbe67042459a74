"""The endpoints without a bus."""

from __future__ import annotations

import pytest

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import DiagnoseRequest, JudgeRequest, Symptom
from oven_kg.checked_graph import load
from oven_kg.reasoning.diagnosis import diagnose
from oven_kg.reasoning.judgement import judge
from oven_kg.service.endpoints import answers

REQUEST = DiagnoseRequest(symptoms=(Symptom(id="loss_spike"),), phase="pretrain", k=50)


def test_endpoints_answer_like_the_pure_functions() -> None:
    endpoints = answers()
    assert endpoints("diagnose", REQUEST.wire()) == diagnose(load(), REQUEST).wire()
    request = JudgeRequest(changes="optimizer.lr_scale:up", symptoms=(Symptom(id="loss_spike"),))
    assert endpoints("judge", request.wire()) == judge(load(), request).wire()
    assert endpoints("sing", b"{}") is None


def test_a_malformed_request_is_refused_with_the_field() -> None:
    with pytest.raises(ConfigError, match="not a JudgeRequest: changes: Field required"):
        answers()("judge", b"{}")

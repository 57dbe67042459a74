"""What telemetry is told of a call, whoever made it."""

from __future__ import annotations

from typing import Any, cast

from oven_llm.providers.conversation import LanguageModel, ModelReply
from oven_llm.providers.genai_telemetry import call_record
from oven_llm.providers.usage import Usage


class Named:
    name, model = "compatible", "m"


MODEL = cast(LanguageModel, Named())


def test_a_record_has_the_replys_tokens_and_cost() -> None:
    reply = ModelReply("x", finish_reason="stop", model="m-1", usage=Usage(3, 4), cost_usd=0.25)
    record: Any = call_record(MODEL, reply, None, resends=2, started_ns=5, evaluation="critic")
    assert (record.provider, record.request_model, record.response_model, record.finish_reason) == (
        "compatible", "m", "m-1", "stop",
    )  # fmt: skip
    assert (record.input_tokens, record.output_tokens, record.cost_usd, record.resends) == (3, 4, 0.25, 2)
    assert (record.evaluation, record.scores, record.error_type) == (
        "critic",
        {},
        None,
    ) and record.ended_ns > record.started_ns


def test_a_record_without_a_reply_has_no_numbers() -> None:
    record = call_record(MODEL, None, "timeout", resends=-1, started_ns=5)
    assert (record.response_model, record.finish_reason, record.error_type, record.resends) == ("", "", "timeout", 0)
    assert record.input_tokens is record.output_tokens is record.cost_usd is None

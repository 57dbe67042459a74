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
    told: Any = call_record(MODEL, reply, None, resends=2, started_ns=5, evaluation="critic")
    assert (told.provider, told.request_model, told.response_model, told.finish_reason) == (
        "compatible", "m", "m-1", "stop",
    )  # fmt: skip
    assert (told.input_tokens, told.output_tokens, told.cost_usd, told.resends) == (3, 4, 0.25, 2)
    assert (told.evaluation, told.scores, told.error_type) == ("critic", {}, None) and told.ended_ns > told.started_ns


def test_a_record_without_a_reply_has_no_numbers() -> None:
    told = call_record(MODEL, None, "timeout", resends=-1, started_ns=5)
    assert (told.response_model, told.finish_reason, told.error_type, told.resends) == ("", "", "timeout", 0)
    assert told.input_tokens is told.output_tokens is told.cost_usd is None

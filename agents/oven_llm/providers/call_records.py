"""Records of calls to a model for telemetry, from the outcome of each."""

from __future__ import annotations

import time
from collections.abc import Mapping

from oven_llm.genai_telemetry import CallRecord
from oven_llm.providers import conversation
from oven_llm.providers.conversation import Conversing
from oven_llm.providers.failures import Kind
from oven_llm.providers.provider import Answer, Provider


def call_record(
    provider: Provider,
    answer: Answer | None,
    error: Kind | None,
    *,
    resends: int,
    started_ns: int,
    cost_usd: float | None,
    context: str = "",
    evaluation: str = "",
    scores: Mapping[str, float] | None = None,
) -> CallRecord:
    """One call that ends now. `answer` None: nothing answered. `cost_usd` None: it is not known. The rest is as in
    CallRecord."""
    usage = answer.usage if answer is not None else None
    return CallRecord(
        operation="chat",
        provider=provider.name,
        request_model=provider.model,
        response_model=answer.model if answer is not None else "",
        input_tokens=usage.input_tokens if usage is not None else None,
        output_tokens=usage.output_tokens if usage is not None else None,
        finish_reason=answer.finish_reason if answer is not None else "",
        error_type=error,
        resends=max(0, resends),
        started_ns=started_ns,
        ended_ns=time.time_ns(),
        context=context,
        cost_usd=cost_usd,
        evaluation=evaluation,
        scores=scores or {},
    )


def conversation_record(
    provider: Conversing, answer: conversation.Answer | None, error: Kind | None, resends: int, started_ns: int
) -> CallRecord:
    """One request for one sample, that ends now. `answer` None: nothing answered."""
    return CallRecord(
        operation="chat",
        provider=provider.name,
        request_model=provider.model,
        response_model=answer.model if answer is not None else "",
        input_tokens=answer.tokens_in if answer is not None and answer.counted else None,
        output_tokens=answer.tokens_out if answer is not None and answer.counted else None,
        finish_reason=answer.finish if answer is not None else "",
        error_type=error,
        resends=max(0, resends),
        started_ns=started_ns,
        ended_ns=time.time_ns(),
        cost_usd=answer.usd if answer is not None else None,
    )

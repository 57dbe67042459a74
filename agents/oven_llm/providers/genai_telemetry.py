"""A call to a language model as a span, by the GenAI semantic conventions of OpenTelemetry.

See github.com/open-telemetry/semantic-conventions-genai. The conventions are still in development, so their names are
used in this file only. Spans never contain prompts, replies or any other text of a conversation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute
from oven_llm.providers.conversation import LanguageModel, ModelReply
from oven_llm.providers.failures import Kind

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
EVALUATION: Final = "gen_ai.evaluation.result"
"""The event of a score for one completion, on the span of the call that gave it. The conventions' attribute for an
explanation is omitted, because it is text of the judge's."""
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATED: Final = "gen_ai.response.id"
"""In such an event: the completion's id in the ScoreRequest, which is a digest."""
COST_USD: Final = "oven.cost.usd"
"""US dollars; the conventions have no attribute for a cost."""


@dataclass(frozen=True)
class CallRecord:
    """One call of an SDK, including its retries. Its fields are named after the attributes (gen_ai.*)."""

    operation: str
    """Always "chat"."""
    provider: str
    request_model: str
    response_model: str
    """Empty without a reply, as are the finish reason and the tokens (None)."""
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str
    error_type: str | None
    """error.type: a kind of failure, never a message. A reply without a usable verdict has one as well."""
    resends: int
    """http.request.resend_count: the number of attempts after the first."""
    started_ns: int
    """Wall-clock time since the epoch."""
    ended_ns: int
    context: str = ""
    """The trace that the request arrived with (`traceparent`); empty without one."""
    cost_usd: float | None = None
    """None if it is unknown."""
    evaluation: str = ""
    """The judged role, e.g. "critic"."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Completion id → 0..1; empty without a verdict."""


OnCall: TypeAlias = Callable[[CallRecord], None]


def call_record(
    model: LanguageModel,
    reply: ModelReply | None,
    error: Kind | None,
    *,
    resends: int,
    started_ns: int,
    context: str = "",
    evaluation: str = "",
    scores: Mapping[str, float] | None = None,
) -> CallRecord:
    """Describe a call that ends now. `reply` is None if there was none; for the rest see CallRecord."""
    usage = reply.usage if reply is not None else None
    return CallRecord(
        operation="chat",
        provider=model.name,
        request_model=model.model,
        response_model=reply.model if reply is not None else "",
        input_tokens=usage.input_tokens if usage is not None else None,
        output_tokens=usage.output_tokens if usage is not None else None,
        finish_reason=reply.finish_reason if reply is not None else "",
        error_type=error,
        resends=max(0, resends),
        started_ns=started_ns,
        ended_ns=time.time_ns(),
        context=context,
        cost_usd=reply.cost_usd if reply is not None else None,
        evaluation=evaluation,
        scores=scores or {},
    )


def trace(call: CallRecord) -> None:
    """Record the call's span, named `<operation> <model>`, below its context. Does nothing while telemetry is off."""
    if not tracing.on():
        return
    attributes: dict[str, Attribute] = {
        OPERATION: call.operation,
        PROVIDER: call.provider,
        REQUEST_MODEL: call.request_model,
    }
    if call.response_model:
        attributes[RESPONSE_MODEL] = call.response_model
    if call.finish_reason:
        attributes[FINISH_REASONS] = (call.finish_reason,)
    if call.input_tokens is not None:
        attributes[INPUT_TOKENS] = call.input_tokens
    if call.output_tokens is not None:
        attributes[OUTPUT_TOKENS] = call.output_tokens
    if call.cost_usd is not None:
        attributes[COST_USD] = call.cost_usd
    name = f"{call.operation} {call.request_model}"
    span = tracing.span(name, call.context, attributes, kind="client", began_ns=call.started_ns, ended_ns=call.ended_ns)
    for completion, score in call.scores.items():
        event: dict[str, Attribute] = {
            EVALUATION_NAME: call.evaluation,
            EVALUATION_SCORE: score,
            EVALUATED: completion,
        }
        span.event(EVALUATION, event, call.ended_ns)
    span.end(call.error_type or "")

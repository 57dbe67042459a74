"""A call to a language model as a span, by the GenAI semantic conventions of OpenTelemetry.

github.com/open-telemetry/semantic-conventions-genai, all "development" still, so every name stands here and nowhere
else. Neither the conventions' opt-in content nor anything else that was said to or by a model has a place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
EVALUATION: Final = "gen_ai.evaluation.result"
"""The event of a verdict on one completion, on the span of the call that gave it. Its explanation, a text of the
judge's, is left out."""
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATED: Final = "gen_ai.response.id"
"""In such an event: the completion's id in the ScoreRequest, which is a digest."""
COST_USD: Final = "oven.cost.usd"
"""US dollars; the conventions have no attribute for a cost."""


@dataclass(frozen=True)
class CallRecord:
    """One call of an SDK, its retries included. Named after gen_ai.* (semantic conventions for generative AI)."""

    operation: str
    """gen_ai.operation.name: "chat"."""
    provider: str
    """gen_ai.provider.name."""
    request_model: str
    response_model: str
    """Empty where nothing answered, as are the finish reason and the tokens (None)."""
    input_tokens: int | None
    output_tokens: int | None
    finish_reason: str
    error_type: str | None
    """error.type, a kind and never a message, also of an answer without a usable verdict; None: it was scored."""
    resends: int
    """http.request.resend_count: attempts but the first."""
    started_ns: int
    """Of the wall clock, since the epoch."""
    ended_ns: int
    context: str = ""
    """The trace that the request came with (`traceparent`); empty without one."""
    cost_usd: float | None = None
    """oven.cost.usd; None where it is not known."""
    evaluation: str = ""
    """gen_ai.evaluation.name: what was judged by, e.g. "critic"."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Completion id → 0..1; empty where there is no verdict."""


def trace(call: CallRecord) -> None:
    """Its span, named `<operation> <model>`, below its context. Does nothing while telemetry is off."""
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
        said: dict[str, Attribute] = {EVALUATION_NAME: call.evaluation, EVALUATION_SCORE: score, EVALUATED: completion}
        span.event(EVALUATION, said, call.ended_ns)
    span.end(call.error_type or "")

"""Records each model call as a span that follows OpenTelemetry's GenAI semantic conventions.

See github.com/open-telemetry/semantic-conventions-genai. The conventions are still in development, so their names are
used in this file only. Spans never contain prompts, replies or any other text of a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute
from oven_llm.providers.conversation import LanguageModel, ModelReply
from oven_llm.providers.failures import FailureKind

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
"""Event for one completion's score, on the span of the call that returned it. It contains no text from the judge."""
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
RESPONSE_ID: Final = "gen_ai.response.id"
"""Attribute of the event for a score: the completion's id from the ScoreRequest, which is a digest."""
COST_USD: Final = "oven.cost.usd"
"""Attribute for the cost in US dollars, for which the conventions have none."""


@dataclass(frozen=True)
class ModelCall:
    """One call of an SDK, including its retries."""

    model: LanguageModel
    reply: ModelReply | None
    """The reply; None if the call failed without one."""
    failure: FailureKind | None
    """The kind of failure; None if the call succeeded. A reply without a usable verdict is a failure."""
    started_ns: int
    """Start of the call in nanoseconds since the epoch."""
    context: str = ""
    """The request's trace (`traceparent`), or an empty string if it has none."""
    role: str = ""
    """The judge's role, e.g. "critic"; an empty string if the caller is not a judge."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Scores from 0 to 1 by completion id; empty without a verdict."""
    ended_ns: int = field(default_factory=time.time_ns)


OnCall: TypeAlias = Callable[[ModelCall], None]


def trace(call: ModelCall) -> None:
    """Record the call as a span named `chat <model>` in the request's trace. Do nothing if telemetry is off."""
    if not tracing.is_on():
        return
    attributes: dict[str, Attribute] = {OPERATION: "chat", PROVIDER: call.model.name, REQUEST_MODEL: call.model.model}
    if (reply := call.reply) is not None:
        if reply.model:
            attributes[RESPONSE_MODEL] = reply.model
        if reply.finish_reason:
            attributes[FINISH_REASONS] = (reply.finish_reason,)
        if reply.usage is not None:
            attributes |= {INPUT_TOKENS: reply.usage.input_tokens, OUTPUT_TOKENS: reply.usage.output_tokens}
        if reply.cost_usd is not None:
            attributes[COST_USD] = reply.cost_usd
    name = f"chat {call.model.model}"
    span = tracing.span(name, call.context, attributes, kind="client", began_ns=call.started_ns, ended_ns=call.ended_ns)
    for id_, score in call.scores.items():
        event: dict[str, Attribute] = {EVALUATION_NAME: call.role, EVALUATION_SCORE: score, RESPONSE_ID: id_}
        span.event(EVALUATION_EVENT, event, call.ended_ns)
    span.end(call.failure or "")

"""A call to a language model as a span, by the GenAI semantic conventions of OpenTelemetry.

github.com/open-telemetry/semantic-conventions-genai, all "development" still, so every name stands here and nowhere
else. Neither the conventions' opt-in content nor anything else that was said to or by a model has a place in it.
"""

from __future__ import annotations

from typing import Final, Protocol

from oven_controller.telemetry import tracing
from oven_controller.telemetry.span import Attribute

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"


class Call(Protocol):
    """What is known of a call once it is over."""

    @property
    def operation(self) -> str:
        """Such as "chat"."""

    @property
    def provider(self) -> str:
        """Such as "openai"."""

    @property
    def request_model(self) -> str: ...
    @property
    def response_model(self) -> str:
        """Empty when no answer came."""

    @property
    def input_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def error_type(self) -> str | None:
        """None when it succeeded; else a kind of error, never its message."""

    @property
    def started_ns(self) -> int:
        """Unix time."""

    @property
    def ended_ns(self) -> int: ...


def trace(call: Call, parent: str = "") -> None:
    """Its span, named `<operation> <model>`, below the context `parent`. Does nothing while telemetry is off."""
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
    name = f"{call.operation} {call.request_model}"
    span = tracing.span(name, parent, attributes, kind="client", began_ns=call.started_ns, ended_ns=call.ended_ns)
    span.end(call.error_type or "")

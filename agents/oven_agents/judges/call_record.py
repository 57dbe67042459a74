"""A record of each question asked, for anyone who traces: the fields of OpenTelemetry's GenAI spans. No content in
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from oven_agents.judges.failures import Kind


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
    error_type: Kind | None
    """error.type, also of an answer without a usable verdict; None: it was scored."""
    resends: int
    """http.request.resend_count: attempts but the first."""
    started_ns: int
    """Of the wall clock, since the epoch."""
    ended_ns: int
    context: str = ""
    """The trace that the request came with (`traceparent`); empty without one."""


OnCall: TypeAlias = Callable[[CallRecord], None]

"""The interface of a span, with or without OpenTelemetry installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

HEADER = "traceparent"
"""The message header with the trace context (W3C Trace Context)."""
Kind = Literal["internal", "client", "producer", "consumer"]
Attribute = str | bool | int | float | tuple[str, ...]


class Span:
    """An open span. A `with` block ends it, and marks it as failed if the block raises.

    This base class is used while telemetry is off. Its spans record nothing, and their context is empty."""

    __slots__ = ()

    @property
    def traceparent(self) -> str:
        """The trace context for the headers of messages; empty while telemetry is off."""
        return ""

    def set_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes. Spans leave the machine, so attributes must not contain text from people or models."""

    def event(self, name: str, attributes: Mapping[str, Attribute], at_ns: int) -> None:
        """Add an event at a Unix time. The restriction on attributes applies here, too."""

    def end(self, error_type: str = "") -> None:
        """End the span. A span that never ends is never sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self.end(error_type.__name__ if error_type else "")

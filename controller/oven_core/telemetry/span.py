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

    This class itself is used while telemetry is off: it does nothing, and its context is empty.
    """

    __slots__ = ()

    @property
    def traceparent(self) -> str:
        """The context for the next message's header; empty while telemetry is off."""
        return ""

    def set_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        """Add attributes. Spans leave the machine, so these must not contain text that a person or a model wrote."""

    def event(self, name: str, attributes: Mapping[str, Attribute], at_ns: int) -> None:
        """Add an event at a Unix time. The same applies to its attributes."""

    def end(self, error_type: str = "") -> None:
        """End the span. A span that never ends is never sent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self.end(error_type.__name__ if error_type else "")

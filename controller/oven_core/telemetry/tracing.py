"""Tracing with OpenTelemetry. It is off unless OVEN_OTLP names a collector.

Each step is one trace: observe → votes → tally → apply. Its context is in the header `traceparent` of each message (W3C
Trace Context) and never in a body. So the log has the same bytes with and without tracing.

While tracing is off, OpenTelemetry is not imported and every span is `OFF`. While it is on, a separate thread sends
spans to the collector. If the collector is down, the spans are lost and one line is logged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oven_core.errors import ConfigError
from oven_core.telemetry.span import HEADER, Attribute, Kind, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from oven_core.telemetry.otlp import Tracing

VARIABLE = "OVEN_OTLP"
FLUSH_S = 2.0
"""Seconds to wait for a slow collector at shutdown."""
MAX_CONTEXTS = 1024
"""Maximum number of trace contexts that `Contexts` stores."""

OFF = Span()
_active: Tracing | None = None


def start(process: str, run: str, exporter: SpanExporter | None = None) -> None:
    """Start tracing as the service `oven-<process>`, if OVEN_OTLP or `exporter` is set. The resource attribute
    `oven.run` names the run. A second call for the same process and run changes nothing.

    Raises ConfigError if OVEN_OTLP is not a URL, or if the extra [otel] is not installed."""
    global _active
    url = os.environ.get(VARIABLE, "")
    if exporter is None and not url:
        return
    if _active is not None and (_active.process, _active.run) == (process, run):
        return
    shutdown()
    if exporter is None and not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{VARIABLE}={url!r} is not a collector's address; use one for OTLP over HTTP, for example http://localhost:4318"
        )
    try:
        from oven_core.telemetry import otlp
    except ImportError as error:
        raise ConfigError(
            f"traces should go to {url}, but OpenTelemetry is not installed ({error.name}): "
            '`pip install "oven-controller[otel]"`, or omit --otlp'
        ) from error
    _active = otlp.Tracing(process, run, exporter or otlp.create_exporter(url), url)


def is_on() -> bool:
    """Return whether tracing is on."""
    return _active is not None


def span(
    name: str,
    parent: str = "",
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: Kind = "internal",
    began_ns: int | None = None,
    ended_ns: int | None = None,
) -> Span:
    """Open a span that starts now and ends when `end` is called.

    `parent` is the trace context of the parent span. If it is empty, the span starts a new trace. `began_ns` and
    `ended_ns` (Unix time) replace the times, for intervals that were measured in code that must not open spans."""
    if _active is None:
        return OFF
    return _active.span(name, parent, attributes or {}, kind, began_ns, ended_ns)


def headers(traceparent: str) -> dict[str, str] | None:
    """Return the headers of a message with this trace context, or None if the context is empty."""
    return {HEADER: traceparent} if traceparent else None


def context_of(headers: Mapping[str, str] | None) -> str:
    """Return the trace context in a message's headers; empty if there is none or while tracing is off."""
    return headers.get(HEADER, "") if _active is not None and headers else ""


def flush(limit_s: float = FLUSH_S) -> None:
    """Send the finished spans within the limit. Do not wait for a collector that is known to be down."""
    if _active is not None:
        _active.flush(limit_s)


def shutdown(limit_s: float = FLUSH_S) -> None:
    """Send the finished spans and turn tracing off."""
    global _active
    tracing, _active = _active, None
    if tracing is not None:
        tracing.close(limit_s)


class Contexts:
    """The newest trace contexts, at most `size`, by the id of a ballot or decision, for spans that are opened later."""

    def __init__(self, size: int = MAX_CONTEXTS) -> None:
        self._size = size
        self._by_key: dict[str, tuple[str, int]] = {}  # (context, Unix time in nanoseconds)

    def add(self, key: str, traceparent: str) -> None:
        """Store a context, unless it is empty."""
        if traceparent:
            self._by_key[key] = (traceparent, time.time_ns())
            if len(self._by_key) > self._size:
                del self._by_key[next(iter(self._by_key))]

    def get(self, key: str) -> str:
        """Return the context with this key, or an empty string."""
        entry = self._by_key.get(key)
        return entry[0] if entry else ""

    def stored_ns(self, key: str) -> int | None:
        """Return the Unix time at which the context was stored, or None."""
        entry = self._by_key.get(key)
        return entry[1] if entry else None

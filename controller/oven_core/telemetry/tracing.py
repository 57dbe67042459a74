"""Traces by OpenTelemetry: off unless OVEN_OTLP names a collector, and never in the way when it does.

One step's observe → votes → tally → apply is one trace. Its context travels in the header `traceparent` of each message
(W3C Trace Context), never in a body: the log holds the same bytes whether anybody traces or not.

Off, nothing of OpenTelemetry is imported and every span is the one `OFF`. On, spans go to the collector from their own
thread; one that is down costs a line in the log and the spans, and nothing else.
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
"""How long an end waits for a collector that answers slowly."""
CONTEXTS_KEPT = 1024

OFF = Span()
_active: Tracing | None = None


def start(process: str, run: str, exporter: SpanExporter | None = None) -> None:
    """Trace from now on, if OVEN_OTLP is set or an exporter is given: as the service `oven-<process>`, with the
    resource attribute `oven.run`. Once more for the same process and run, it changes nothing.

    Raises ConfigError when OVEN_OTLP is not a URL, or the extra [otel] is not installed.
    """
    global _active
    url = os.environ.get(VARIABLE, "")
    if exporter is None and not url:
        return
    if _active is not None and (_active.process, _active.run) == (process, run):
        return
    shutdown()
    if exporter is None and not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"{VARIABLE}={url!r} is not an address of a collector; OTLP over HTTP has one such as http://localhost:4318"
        )
    try:
        from oven_core.telemetry import otlp
    except ImportError as error:
        raise ConfigError(
            f"traces are to go to {url}, and OpenTelemetry is not installed ({error.name}): "
            '`pip install "oven-controller[otel]"`, or leave out --otlp'
        ) from error
    _active = otlp.Tracing(process, run, exporter or otlp.collector(url), url)


def on() -> bool:
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
    """A span below the context `parent` (empty: the root of a new trace). With `began_ns` and `ended_ns` (Unix time)
    it tells of something past, measured where no span may be made; else it lasts from here to its end."""
    if _active is None:
        return OFF
    return _active.span(name, parent, attributes or {}, kind, began_ns, ended_ns)


def headers(traceparent: str) -> dict[str, str] | None:
    """A message's headers with that context; None for the empty one, so that nothing is sent."""
    return {HEADER: traceparent} if traceparent else None


def carried(headers: Mapping[str, str] | None) -> str:
    """The context that a message came with; empty without one, and while telemetry is off."""
    return headers.get(HEADER, "") if _active is not None and headers else ""


def flush(limit_s: float = FLUSH_S) -> None:
    """Send what is ready, within the limit, and without waiting for a collector that is known to be gone."""
    if _active is not None:
        _active.flush(limit_s)


def shutdown(limit_s: float = FLUSH_S) -> None:
    """`flush`, and off from then on."""
    global _active
    ending, _active = _active, None
    if ending is not None:
        ending.close(limit_s)


class Contexts:
    """The contexts that later spans continue from, by what they belong to; beyond `kept` the oldest go."""

    def __init__(self, kept: int = CONTEXTS_KEPT) -> None:
        self._kept = kept
        self._held: dict[str, tuple[str, int]] = {}

    def keep(self, key: str, traceparent: str) -> None:
        if traceparent:
            self._held[key] = (traceparent, time.time_ns())
            if len(self._held) > self._kept:
                del self._held[next(iter(self._held))]

    def get(self, key: str) -> str:
        """Empty for one that is not held."""
        held = self._held.get(key)
        return held[0] if held else ""

    def since_ns(self, key: str) -> int | None:
        """When it was kept, in Unix time."""
        held = self._held.get(key)
        return held[1] if held else None

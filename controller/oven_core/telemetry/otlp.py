"""Spans on OpenTelemetry's SDK. Only `tracing.start` imports it, and only when traces are wanted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oven_core.telemetry.span import HEADER, Attribute, Kind, Span

log = logging.getLogger("oven.telemetry")

PATH = "/v1/traces"
ATTRIBUTE_CHARACTERS = 256
"""An actuator's name in a vote is whatever the agent wrote."""
LOOK_S = 0.02

_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Our own provider: the process-wide one, and whatever span is current, are the training script's business.

    The resource says service and run and nothing else. OpenTelemetry's detectors, which would add the command line
    among other things, are not asked.
    """

    def __init__(self, process: str, run: str, exporter: SpanExporter, url: str) -> None:
        self.process, self.run = process, run
        self._outlet = _Outlet(exporter, url)
        self._made, self._counting = 0, threading.Lock()
        self._provider = TracerProvider(
            resource=Resource({"service.name": f"oven-{process}", "oven.run": run}),
            shutdown_on_exit=False,  # it would wait for a collector that is gone
            span_limits=SpanLimits(max_span_attribute_length=ATTRIBUTE_CHARACTERS),
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._outlet))
        self._tracer = self._provider.get_tracer("oven_controller")

    def span(
        self,
        name: str,
        parent: str,
        attributes: Mapping[str, Attribute],
        kind: Kind,
        began_ns: int | None,
        ended_ns: int | None,
    ) -> Span:
        nothing = Context()  # not the current one: that is another's trace
        above = _W3C.extract({HEADER: parent}, context=nothing) if parent else nothing
        inner = self._tracer.start_span(name, above, _KINDS[kind], attributes, start_time=began_ns)
        return _Open(self, inner, ended_ns)

    def end(self, inner: trace.Span, ended_ns: int | None) -> None:
        with self._counting:
            self._made += inner.get_span_context().trace_flags.sampled
        with _quietly():
            inner.end(ended_ns)

    def flush(self, limit_s: float) -> None:
        self._within(limit_s, self._provider.force_flush)

    def close(self, limit_s: float) -> None:
        self.flush(limit_s)
        self._within(0.0, self._provider.shutdown)
        if lost := self._made - self._outlet.delivered:
            log.warning("%d of %d spans did not reach %s", lost, self._made, self._outlet.url)

    def _within(self, limit_s: float, call: Callable[[], object]) -> None:
        """The SDK's own calls wait for as long as the exporter retries, so they get a thread and we leave."""

        def run() -> None:
            with _quietly():
                call()

        thread = threading.Thread(target=run, name="oven-telemetry", daemon=True)
        thread.start()
        deadline = time.monotonic() + limit_s
        while thread.is_alive() and not self._outlet.failing and (left := deadline - time.monotonic()) > 0:
            thread.join(min(LOOK_S, left))


class _Open(Span):
    __slots__ = ("_ended_ns", "_inner", "_traceparent", "_tracing")

    def __init__(self, tracing: Tracing, inner: trace.Span, ended_ns: int | None) -> None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(inner, Context()))
        self._tracing, self._inner, self._ended_ns = tracing, inner, ended_ns
        self._traceparent = carrier.get(HEADER, "")  # none when OTEL_SDK_DISABLED says so

    @property
    def traceparent(self) -> str:
        return self._traceparent

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        self._inner.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, Attribute], at_ns: int) -> None:
        self._inner.add_event(name, attributes, at_ns)

    def end(self, error_type: str = "") -> None:
        """The kind of error only: its message may quote what it failed on."""
        if error_type:
            self._inner.set_attribute("error.type", error_type)
            self._inner.set_status(trace.StatusCode.ERROR)
        self._tracing.end(self._inner, self._ended_ns)


class _Outlet(SpanExporter):
    """An exporter that reports its first failure in one line, where OpenTelemetry's would report each."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self.url = url
        self.delivered = 0
        self.failing = False
        self._exporter = exporter
        self._told = False
        for name in _LOUD:
            logging.getLogger(name).addFilter(_drop_ours)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        why = ""
        try:
            with _quietly(self._trouble):
                result = self._exporter.export(spans)
        except Exception as error:
            # Its text may hold what the exporter was given to authenticate itself with.
            result, why = SpanExportResult.FAILURE, f" ({type(error).__name__})"
        if result is SpanExportResult.SUCCESS:
            self.delivered += len(spans)
            self.failing = False
        else:
            self._trouble(why)
        return result

    def _trouble(self, why: str = "") -> None:
        """Said at the first failed attempt, not after the last: no one then waits for it at the end."""
        self.failing = True
        if not self._told:
            self._told = True
            log.warning("the collector at %s does not take the traces%s; the run continues without", self.url, why)

    def shutdown(self) -> None:
        with _quietly():
            self._exporter.shutdown()


def collector(url: str) -> SpanExporter:
    """OTLP over HTTP to the collector at `url`: its address, with or without the path. OTEL_EXPORTER_OTLP_HEADERS and
    _TIMEOUT hold here as everywhere."""
    base = url.rstrip("/")
    return OTLPSpanExporter(endpoint=base if base.endswith(PATH) else base + PATH)


_LOUD = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
_quiet = threading.local()


@contextmanager
def _quietly(trouble: Callable[[], object] | None = None) -> Iterator[None]:
    """What OpenTelemetry logs on this thread meanwhile is about our spans: `trouble` is called instead."""
    before = getattr(_quiet, "trouble", None)
    _quiet.trouble = trouble or before or (lambda: None)
    try:
        yield
    finally:
        _quiet.trouble = before


def _drop_ours(record: logging.LogRecord) -> bool:
    """A filter for the loggers above; the training script's own use of them is heard as before."""
    trouble = getattr(_quiet, "trouble", None)
    if trouble is None:
        return True
    if record.levelno >= logging.WARNING:
        trouble()
    return False

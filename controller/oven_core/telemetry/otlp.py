"""Create and export spans with the OpenTelemetry SDK. Only `tracing.start` imports this module, if tracing is on."""

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
"""Maximum length of an attribute. Agents choose some of them, for example the actuator's name in a vote."""
POLL_S = 0.02
"""Seconds between checks for a failing collector during a flush."""

_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
}
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Creates and sends spans. It has its own tracer provider, because the global one belongs to the training script.

    The resource consists of the service and the run, without OpenTelemetry's detectors, which would add the command
    line, among other things."""

    def __init__(self, process: str, run: str, exporter: SpanExporter, url: str) -> None:
        self.process, self.run = process, run
        self._exporter = _ReportingExporter(exporter, url)
        self._ended_count, self._lock = 0, threading.Lock()
        self._provider = TracerProvider(
            resource=Resource({"service.name": f"oven-{process}", "oven.run": run}),
            shutdown_on_exit=False,  # it would wait for a collector that is down
            span_limits=SpanLimits(max_span_attribute_length=ATTRIBUTE_CHARACTERS),
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
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
        """Open a span. `tracing.span` describes the arguments."""
        root = Context()  # the current context belongs to another trace
        context = _W3C.extract({HEADER: parent}, context=root) if parent else root
        otel_span = self._tracer.start_span(name, context, _KINDS[kind], attributes, start_time=began_ns)
        return _OpenSpan(self, otel_span, ended_ns)

    def end(self, otel_span: trace.Span, ended_ns: int | None) -> None:
        """End a span, and count it if it was sampled."""
        if otel_span.get_span_context().trace_flags.sampled:
            with self._lock:
                self._ended_count += 1
        with _quiet():
            otel_span.end(ended_ns)

    def flush(self, limit_s: float) -> None:
        """Send the finished spans within the limit."""
        self._run_within(limit_s, self._provider.force_flush)

    def close(self, limit_s: float) -> None:
        """Send the finished spans within the limit, and warn about lost ones."""
        self.flush(limit_s)
        self._run_within(0.0, self._provider.shutdown)
        if lost_count := self._ended_count - self._exporter.delivered_count:
            log.warning("%d of %d spans did not reach %s", lost_count, self._ended_count, self._exporter.url)

    def _run_within(self, limit_s: float, call: Callable[[], object]) -> None:
        """Run an SDK call in a thread and wait for it until the limit. The call blocks while the exporter retries."""

        def run() -> None:
            with _quiet():
                call()

        thread = threading.Thread(target=run, name="oven-telemetry", daemon=True)
        thread.start()
        deadline = time.monotonic() + limit_s
        while thread.is_alive() and not self._exporter.is_failing and (remaining_s := deadline - time.monotonic()) > 0:
            thread.join(min(POLL_S, remaining_s))


class _OpenSpan(Span):
    __slots__ = ("_ended_ns", "_otel_span", "_traceparent", "_tracing")

    def __init__(self, tracing: Tracing, otel_span: trace.Span, ended_ns: int | None) -> None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(otel_span, Context()))
        self._tracing, self._otel_span, self._ended_ns = tracing, otel_span, ended_ns
        self._traceparent = carrier.get(HEADER, "")  # absent with OTEL_SDK_DISABLED

    @property
    def traceparent(self) -> str:
        return self._traceparent

    def set_attributes(self, attributes: Mapping[str, Attribute]) -> None:
        self._otel_span.set_attributes(attributes)

    def event(self, name: str, attributes: Mapping[str, Attribute], at_ns: int) -> None:
        self._otel_span.add_event(name, attributes, at_ns)

    def end(self, error_type: str = "") -> None:
        """End the span. Only the type of an error is recorded, because its message may quote data."""
        if error_type:
            self._otel_span.set_attribute("error.type", error_type)
            self._otel_span.set_status(trace.StatusCode.ERROR)
        self._tracing.end(self._otel_span, self._ended_ns)


class _ReportingExporter(SpanExporter):
    """An exporter that logs only its first failure, in one line. OpenTelemetry's exporter would log every failure."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self.url = url
        self.delivered_count = 0
        self.is_failing = False
        self._exporter = exporter
        self._has_reported = False
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).addFilter(_drop_own_records)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        cause = ""
        try:
            with _quiet(self._report_failure):
                result = self._exporter.export(spans)
        except Exception as error:
            # Log only the type, because the message may contain the exporter's credentials.
            result, cause = SpanExportResult.FAILURE, f" ({type(error).__name__})"
        if result is SpanExportResult.SUCCESS:
            self.delivered_count += len(spans)
            self.is_failing = False
        else:
            self._report_failure(cause)
        return result

    def _report_failure(self, cause: str = "") -> None:
        """Record a failed attempt, so that nothing waits for the collector, and warn about the first one."""
        self.is_failing = True
        if not self._has_reported:
            self._has_reported = True
            log.warning("the collector at %s does not accept traces%s; the run continues without them", self.url, cause)

    def shutdown(self) -> None:
        with _quiet():
            self._exporter.shutdown()


def create_exporter(url: str) -> SpanExporter:
    """Return an exporter that sends OTLP over HTTP to the collector at `url`. The path in the URL is optional.

    The exporter also reads the variables OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_TIMEOUT."""
    base = url.rstrip("/")
    return OTLPSpanExporter(endpoint=base if base.endswith(PATH) else base + PATH)


_NOISY_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")
_thread_state = threading.local()


@contextmanager
def _quiet(on_failure: Callable[[], object] | None = None) -> Iterator[None]:
    """Suppress OpenTelemetry's log records in this thread within the block, and call `on_failure` for warnings."""
    previous = getattr(_thread_state, "on_failure", None)
    _thread_state.on_failure = on_failure or previous or (lambda: None)
    try:
        yield
    finally:
        _thread_state.on_failure = previous


def _drop_own_records(record: logging.LogRecord) -> bool:
    """Filter out records about this project's spans. Records about the training script's own spans pass."""
    on_failure = getattr(_thread_state, "on_failure", None)
    if on_failure is None:
        return True
    if record.levelno >= logging.WARNING:
        on_failure()
    return False

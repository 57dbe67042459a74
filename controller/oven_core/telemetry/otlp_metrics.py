"""Send gauges with the OpenTelemetry SDK, as OTLP over HTTP. It needs the extra [otel]."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

PATH = "/v1/metrics"
INTERVAL_MS = 10_000
Series = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each series of one instrument."""


class MetricsSender:
    """Sends the current values every INTERVAL_MS, and once more when it is closed. It has its own meter provider."""

    def __init__(
        self, run: str, url: str, instruments: Mapping[str, tuple[str, str]], read: Callable[[str], Series]
    ) -> None:
        """`instruments` maps names to kind ("gauge" or "counter") and description. `read` returns the series of one."""
        for name in ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk._shared_internal"):
            logging.getLogger(name).addFilter(_FirstFailureOnly(url))
        base = url.rstrip("/").removesuffix("/v1/traces")
        exporter = OTLPMetricExporter(endpoint=base if base.endswith(PATH) else base + PATH)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=INTERVAL_MS)
        resource = Resource({"service.name": "oven-metrics", "oven.run": run})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("oven_controller")
        for name, (kind, description) in instruments.items():
            create = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
            create(name, [_callback(name, read)], description=description)

    def close(self, limit_s: float) -> None:
        """Send the last values within the limit."""
        self._provider.shutdown(timeout_millis=limit_s * 1000)


def _callback(name: str, read: Callable[[str], Series]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(labels)) for labels, value in read(name)]

    return observe


class _FirstFailureOnly(logging.Filter):
    """Passes only the first warning, in our words. The SDK would log each failed export."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._has_failed = url, False

    def filter(self, record: logging.LogRecord) -> bool:
        if self._has_failed or record.levelno < logging.WARNING:
            return False
        self._has_failed = True
        record.msg, record.args = f"the collector at {self._url} does not accept metrics; the run continues", ()
        record.exc_info = None
        return True

"""Gauges from a log, and their two edges: the page for Prometheus and OTLP over HTTP."""

from __future__ import annotations

import re
import urllib.request

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from tests.support.exported_run import recorded_events
from tests.support.mesh_log import event
from tests.support.runs import seen
from tests.support.webhook_server import Reply, WebhookServer

from oven_controller.exporting.to_prometheus import page, serve
from oven_core.errors import ProcessError
from oven_core.protocol.alerts import Alert
from oven_core.telemetry.otlp_metrics import MetricsSender
from oven_runs.log.gauges import FAMILIES, MAX_METRICS, Gauges

STEPS = 60


def gauges_of_run() -> Gauges:
    gauges = Gauges()
    for entry in recorded_events(STEPS):
        gauges.feed(entry)
    return gauges


def test_the_page_has_the_newest_values_and_the_counts_of_decisions() -> None:
    text = page("r", gauges_of_run().samples())
    assert f'oven_step{{run="r"}} {STEPS}.0' in text
    assert 'oven_metric{run="r",metric="loss"} 0.5' in text
    assert 'oven_knob{run="r",knob="optimizer.lr_scale"} 0.015625' in text
    assert 'oven_decisions_total{run="r",knob="optimizer.lr_scale",verdict="adopted"} 6.0' in text
    assert 'oven_outcome_gain{run="r",knob="optimizer.lr_scale",metric="reward"} 0.1' in text
    assert 'oven_findings_total{run="r",metric="loss"} 3.0' in text
    assert 'oven_training{run="r"} 0.0' in text
    families = re.findall(r"# TYPE (\w+)", text)
    assert sorted(families) == sorted(set(families))  # the samples of a family are adjacent


def test_labels_are_escaped_and_numbers_are_prometheus_own() -> None:
    gauges = Gauges()
    gauges.feed(event(1, "oven.r.observation", seen(1, {'a"b\\\n': float("nan"), "c": float("-inf")})))
    text = page("r", gauges.samples())
    assert 'metric="a\\"b\\\\\\n"} NaN\n' in text
    assert 'metric="c"} -Inf\n' in text


def test_the_number_of_series_is_bounded_by_metrics_and_knobs() -> None:
    gauges = gauges_of_run()
    before = sum(1 for _ in gauges.samples())
    for seq in range(3 * MAX_METRICS):
        gauges.feed(event(seq, "oven.r.observation", seen(seq, {f"new/{seq}": 1.0})))
        made_up = Alert(state="raised", symptom=f"s{seq}", metric=f"m{seq}", value=1, expected=0, tick=seq)
        gauges.feed(event(seq, "oven.r.alert.a", made_up))
    samples = list(gauges.samples())
    assert len(samples) <= before + MAX_METRICS + 2  # a series each for findings on metrics that nobody measured
    (dropped,) = [sample.value for sample in samples if sample.family.name == "oven_dropped_names"]
    assert dropped >= 2 * MAX_METRICS


def test_prometheus_can_scrape_the_page() -> None:
    gauges = gauges_of_run()
    with serve("r", gauges.samples, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert reply.read().decode() == page("r", gauges.samples())
        with pytest.raises(ProcessError, match=f"the metrics port {port} .* choose another with --metrics-port"):
            serve("r", gauges.samples, port).__enter__()


def test_a_collector_gets_the_gauges_by_otlp() -> None:
    samples = list(gauges_of_run().samples())
    instruments = {family.name: (family.kind, family.help) for family in FAMILIES}
    with WebhookServer(Reply(200)) as collector:
        sender = MetricsSender(
            "r",
            collector.url,
            instruments,
            lambda name: [(labels, value) for family, labels, value in samples if family.name == name],
        )
        sender.close(5)
    (post,) = collector.posted
    assert post.path == "/v1/metrics"
    (resource,) = ExportMetricsServiceRequest.FromString(post.body).resource_metrics
    assert {pair.key: pair.value.string_value for pair in resource.resource.attributes}["oven.run"] == "r"
    metrics = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    losses = [
        point.as_double
        for point in metrics["oven_metric"].gauge.data_points
        if [pair.value.string_value for pair in point.attributes] == ["loss"]
    ]
    assert losses == [0.5]
    assert [point.as_double for point in metrics["oven_decisions_total"].sum.data_points] == [6.0]


def test_a_collector_that_is_down_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with WebhookServer(Reply(404)) as collector:
        sender = MetricsSender("r", collector.url, {"oven_step": ("gauge", "")}, lambda name: [({}, 1.0)])
        sender.close(5)
    assert [record.getMessage() for record in caplog.records] == [
        f"the collector at {collector.url} does not accept metrics; the run continues"
    ]

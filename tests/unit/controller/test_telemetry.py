"""Traces: nothing while they are off, no secrets while they are on, a collector that is down is no problem."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from oven_core.errors import ConfigError
from oven_core.telemetry import tracing
from oven_llm.providers import genai_telemetry as genai
from oven_llm.providers.conversation import LanguageModel, ModelReply
from oven_llm.providers.usage import Usage
from oven_runs.server.embedded_server import free_port

ROOT = Path(__file__).resolve().parents[3]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "sk-canary-3141592653"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    monkeypatch.delenv(tracing.VARIABLE, raising=False)
    exporter = InMemorySpanExporter()
    tracing.start("test", "r", exporter)
    yield exporter
    tracing.shutdown()


def finished(exporter: InMemorySpanExporter) -> Sequence[ReadableSpan]:
    tracing.flush(limit_s=60)
    return exporter.get_finished_spans()


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / part) for part in ("controller", "agents", "learner"))
    parent_env = {key: value for key, value in os.environ.items() if not key.startswith(("OVEN_", "OTEL_"))}
    command = [sys.executable, "-W", "ignore", "-c", code, "--token", CANARY]
    return subprocess.run(
        command, env=parent_env | {"PYTHONPATH": path} | env, capture_output=True, text=True, timeout=60, check=False
    )


def test_off_it_imports_nothing_of_opentelemetry_and_sends_no_header() -> None:
    done = python(
        "import sys, oven_core.replica.replica_process, oven_agents.runtime.agent_host, oven_learner.link.worker, "
        "oven_controller.cli.main\n"
        "from oven_core.telemetry import tracing as telemetry\n"
        "from oven_llm.providers import genai_telemetry as genai\n"
        "telemetry.start('mesh', 'r')\n"
        "with telemetry.span('observe', attributes={'oven.tick': 1}) as span: span.set_attributes({'a': 1})\n"
        "assert span is telemetry.OFF and telemetry.headers(span.traceparent) is None and not telemetry.is_on()\n"
        "genai.trace(None)\n"
        "telemetry.shutdown()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))])"
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_a_wanted_trace_without_the_extra_is_an_error_that_names_it() -> None:
    done = python(
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from oven_core import errors; from oven_core.telemetry import tracing as telemetry\n"
        "try: telemetry.start('mesh', 'r')\n"
        "except errors.ConfigError as error: print(error, telemetry.is_on())",
        OVEN_OTLP="http://127.0.0.1:4318",
    )
    assert 'pip install "oven-controller[otel]"' in done.stdout and done.stdout.strip().endswith("False"), done.stderr


def test_an_invalid_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.VARIABLE, "localhost:4318")
    with pytest.raises(ConfigError, match="http://localhost:4318"):
        tracing.start("mesh", "r")


def test_a_span_goes_on_from_its_parent_and_says_what_failed_without_quoting_it(spans: InMemorySpanExporter) -> None:
    with tracing.span("vote", PARENT, {"oven.tick": 3}, kind="consumer") as span:
        trace_id, span_id = span.traceparent.split("-")[1:3]
        span.set_attributes({"oven.actuator": "x" * 5000})
    with pytest.raises(ValueError, match=CANARY), tracing.span("tally", span.traceparent):
        raise ValueError(CANARY)
    vote, tally = finished(spans)
    assert vote.parent is not None and tally.parent is not None and vote.attributes and tally.attributes
    assert f"{vote.parent.span_id:016x}" == PARENT.split("-")[2]
    assert f"{tally.parent.span_id:016x}" == span_id
    assert f"{tally.context.trace_id:032x}" == trace_id == PARENT.split("-")[1]
    assert vote.kind is SpanKind.CONSUMER and vote.attributes["oven.tick"] == 3
    assert vote.attributes["oven.actuator"] == "x" * 256, "what an agent wrote is cut"
    assert tally.status.status_code is StatusCode.ERROR and tally.attributes["error.type"] == "ValueError"
    assert CANARY not in tally.to_json() and not tally.events
    assert dict(vote.resource.attributes) == {"service.name": "oven-test", "oven.run": "r"}


def test_a_span_of_the_training_scripts_own_is_no_parent(spans: InMemorySpanExporter) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider(shutdown_on_exit=False).get_tracer("theirs").start_as_current_span("step"):
        tracing.span("observe").end()
    (observe,) = finished(spans)
    assert observe.parent is None


REPLY = ModelReply("", finish_reason="end_turn", model="claude-x-1", usage=Usage(120, 7))
MODEL = cast(LanguageModel, SimpleNamespace(name="anthropic", model="claude-x"))
CALL = genai.ModelCall(MODEL, REPLY, None, 1_000, PARENT, ended_ns=3_000)


def test_a_call_to_a_model_is_a_span_by_the_conventions(spans: InMemorySpanExporter) -> None:
    genai.trace(CALL)
    genai.trace(replace(CALL, reply=None, failure="timeout", context=""))
    good, bad = finished(spans)
    assert good.name == "chat claude-x" and good.kind is SpanKind.CLIENT and good.parent is not None
    assert (good.start_time, good.end_time) == (1_000, 3_000)
    assert dict(good.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.response.model": "claude-x-1",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 7,
    }
    assert dict(bad.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "error.type": "timeout",
    }


def test_a_collector_that_is_gone_costs_one_line_and_no_traceback() -> None:
    """Two batches and an end: the spans are lost, the process is not."""
    done = python(
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from oven_core.telemetry import tracing as telemetry\n"
        "telemetry.start('mesh', 'r')\n"
        "for _ in range(3):\n"
        "    telemetry.span('observe').end(); telemetry.flush()\n"
        "telemetry.shutdown(); print('over')",
        OVEN_OTLP=f"http://127.0.0.1:{free_port()}",
    )
    assert done.returncode == 0 and done.stdout.strip() == "over"
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 2, done.stderr
    assert "does not accept traces" in lines[0] and "3 of 3 spans did not reach" in lines[1]


def test_what_the_training_script_traces_itself_is_still_heard(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("theirs")
    assert "theirs" in caplog.text


def test_an_exporter_that_raises_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise RuntimeError(CANARY)

    tracing.start("test", "r", Broken())
    for _ in range(2):
        tracing.span("observe").end()
        tracing.flush(limit_s=60)
    tracing.shutdown()
    lines = [record.getMessage() for record in caplog.records if record.name == "oven.telemetry"]
    assert len(lines) == 2 and "(RuntimeError)" in lines[0] and "2 of 2 spans" in lines[1]
    assert CANARY not in caplog.text


@pytest.mark.parametrize("header", ["nonsense", "00-0-0-01", "ff-" + PARENT[3:], "00-" + "0" * 32 + PARENT[35:]])
def test_an_invalid_context_starts_a_new_trace(spans: InMemorySpanExporter, header: str) -> None:
    tracing.span("vote", header).end()
    (vote,) = finished(spans)
    assert vote.parent is None


def test_a_verdict_is_an_event_for_each_completion_without_its_text(spans: InMemorySpanExporter) -> None:
    genai.trace(replace(CALL, reply=replace(REPLY, cost_usd=0.0125), role="critic", scores={"a1": 0.5, "b2": 1.0}))
    (span,) = finished(spans)
    assert (span.attributes or {})["oven.cost.usd"] == 0.0125
    name, score, answer = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.response.id"
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("gen_ai.evaluation.result", {name: "critic", score: value, answer: completion})
        for completion, value in (("a1", 0.5), ("b2", 1.0))
    ]


def test_contexts_are_bounded() -> None:
    contexts = tracing.Contexts(size=2)
    for key in ("a", "b", "c"):
        contexts.add(key, f"of {key}")
    contexts.add("d", "")
    assert [contexts.get(key) for key in "abcd"] == ["", "of b", "of c", ""]

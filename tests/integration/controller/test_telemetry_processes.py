"""The whole stack as processes, a script of one's own around the client, and a collector that speaks OTLP over HTTP."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.integration.conftest import Stack

pytestmark = pytest.mark.e2e

CANARY = "sk-canary-3141592653"

SCRIPT = """
import time
import oven_learner as oven

rate = [1.0]
knobs = oven.Actuators()
knobs.scalar("rate", lambda: rate[0], lambda value: rate.__setitem__(0, value), low=0.1, high=10)
with oven.connect(knobs, max_steps=10_000) as client:
    for step in range(1, 10_000):
        client.observe(step, {"loss": 1.0})
        client.poll()
        if rate[0] != 1.0:
            break
        time.sleep(0.01)
assert rate == [2.0], rate
"""

AGENT = f"""
from oven_agents import Agent


class Doubler(Agent):
    needs = ("loss",)
    moves = ("rate",)

    def vote(self, window):
        return window.propose("rate", 2.0, confidence=0.9, why="{CANARY}", target="loss")
"""


SETTINGS = [
    *("--set", "agents=[{name: doubler.py, alone: [rate]}]", "--set", "rules.autonomy=auto"),
    *("--set", "rules.newcomers=full", "--set", "rules.reversals=1000000"),
]


class Collector(ThreadingHTTPServer):
    """Takes what is posted to it. `taken`: the bodies, `paths`: where to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.payloads: list[bytes] = []
        self.paths: set[str] = set()
        threading.Thread(target=self.serve_forever, name="collector", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[tuple[dict[str, str], Span]]:
        """(resource's attributes, span)."""
        named_spans = []
        for body in self.payloads:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                named_spans += [(names, span) for scope in resource.scope_spans for span in scope.spans]
        return named_spans


class _Handler(BaseHTTPRequestHandler):
    server: Collector
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        self.server.payloads.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server
        server.shutdown()


def attributes_of(span: Span) -> dict[str, str]:
    """Its attributes that are texts."""
    return {attribute.key: attribute.value.string_value for attribute in span.attributes}


def test_one_step_is_one_trace_across_the_processes(stack: Stack, collector: Collector) -> None:
    (stack.folder / "train.py").write_text(SCRIPT)
    (stack.folder / "doubler.py").write_text(AGENT)
    stack.env |= {
        "OVEN_OTLP": collector.url,
        "OPENAI_API_KEY": CANARY,
        "ANTHROPIC_API_KEY": CANARY,
        "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process,os,host",
    }
    wanted = [*SETTINGS, "--run", "r"]
    code, output = stack.command("run", *wanted, "--", sys.executable, "train.py", "--token", CANARY)
    assert code == 0, output

    spans = collector.spans()
    services = {f"oven-{name}" for name in ("learner", "mesh", "agent-doubler")}
    assert {resource["service.name"] for resource, _ in spans} == services
    assert {resource["oven.run"] for resource, _ in spans} == {"r"}
    assert {frozenset(resource) for resource, _ in spans} == {frozenset({"service.name", "oven.run"})}
    assert collector.paths == {"/v1/traces"}
    assert not [body for body in collector.payloads if CANARY.encode() in body]

    # On a busy machine the first decisions expire before the learner reads them.
    (apply,) = [span for _, span in spans if span.name == "apply" and attributes_of(span)["oven.status"] == "applied"]
    ids = {span.span_id: (resource["service.name"], span) for resource, span in spans}
    names = []
    current: Span | None = apply
    while current is not None:
        service, span = ids[current.span_id]
        assert span.trace_id == apply.trace_id
        names.append((service, span.name))
        current = ids[span.parent_span_id][1] if span.parent_span_id else None
    assert names == [
        ("oven-learner", "apply"),
        ("oven-mesh", "tally"),
        ("oven-agent-doubler", "vote"),
        ("oven-learner", "observe"),
    ]
    assert stack.command("replay", "r")[0] == 0


def test_a_collector_that_is_gone_changes_nothing(stack: Stack, collector: Collector) -> None:
    (stack.folder / "train.py").write_text(SCRIPT)
    (stack.folder / "doubler.py").write_text(AGENT)
    collector.shutdown()
    collector.server_close()
    stack.env["OVEN_OTLP"] = collector.url
    wanted = [*SETTINGS, "--run", "r"]
    code, output = stack.command("run", *wanted, "--", sys.executable, "train.py")
    assert code == 0 and "Traceback" not in output, output
    for log in stack.run_folder("r").logs.glob("*.log"):
        text = log.read_text()
        assert "Traceback" not in text, text
        assert text.count("does not accept traces") <= 1, text
    assert "spans did not reach" in (stack.run_folder("r").logs / "mesh.log").read_text()

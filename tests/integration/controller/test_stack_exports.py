"""A stack exports its run while it trains, survives the death of its exporters, and wakes those who wait."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from tests.integration.conftest import Stack, wait_for

pytestmark = pytest.mark.e2e

ADVISER = '''
"""Wants the clip halved, at every tenth step."""
from oven_agents import Agent

class Adviser(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        if window.tick % 10:
            return None
        return window.propose("grad.clip", window.knobs["grad.clip"].number / 2, confidence=0.95, why="norms are large")
'''
SERVICES = {
    "learner": "oven_services:learner",
    "export": "oven_controller.exporting.exporter_process:main",
    "metrics": "oven_controller.exporting.metrics_process:main",
}
SETTINGS = ["agents=[{name: adviser.py, alone: [grad.clip]}]", "kg=false", "rules.newcomers=full", "metrics_port=0"]


def test_a_stack_exports_its_run_and_wakes_those_who_wait(stack: Stack) -> None:
    stack.install(SERVICES)
    (stack.folder / "adviser.py").write_text(ADVISER)
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    up = stack.start("up", "--headless", "--recipe", "toy", "--run", "sent", "--export", "parquet", *sets)
    folder = stack.run_folder("sent")
    port_file, state_file = folder.path / "metrics.port", folder.path / "export" / "parquet.json"
    wait_for(port_file.exists, "the page for Prometheus")
    wait_for(lambda: "export-parquet" in folder.info().children, "an exporter")

    reached = stack.json("wait", "sent", "--for", "step:3")
    assert (reached["outcome"], reached["event"]["type"]) == ("happened", "Observation")
    assert reached["event"]["step"] >= 3
    decided = stack.json("wait", "sent", "--for", "decision")
    assert decided["event"]["actuator"] == "grad.clip"
    again = stack.json("wait", "sent", "--for", "decision", "--after", str(decided["seq"] - 1))
    assert again == decided
    code, output = stack.command("wait", "sent", "--for", "finding", "--timeout", "0.2", "--json")
    assert (code, json.loads(output)["outcome"]) == (3, "timeout")

    address = f"http://127.0.0.1:{int(port_file.read_text())}/metrics"
    wait_for(lambda: b'oven_decisions_total{run="sent",knob="grad.clip"' in scrape(address), "a decision on the page")
    code, output = stack.command("export", "sent", "--to", "parquet")
    assert (code, "already being exported to parquet" in output) == (2, True), output
    killed_at = state_file.stat().st_mtime_ns
    os.kill(folder.info().children["export-parquet"], signal.SIGKILL)
    wait_for(lambda: state_file.stat().st_mtime_ns != killed_at, "the restarted exporter")

    waiter = stack.start("wait", "sent", "--for", "end", "--json")
    assert stack.command("stop", "sent", "--reason", "enough")[0] == 0
    code, output = stack.end_of(waiter)
    assert (code, json.loads(output)["event"]["reason"]) == (0, "stopped"), output
    stack.end_of(up)
    assert stack.command("wait", "sent", "--for", "finding")[0] == 1
    code, output = stack.command("export", "sent", "--to", "parquet")
    assert code == 0, output
    assert exported_steps(folder.path) == logged_steps(folder.export) != []


def scrape(address: str) -> bytes:
    with urllib.request.urlopen(address) as reply:
        page: bytes = reply.read()
        return page


def exported_steps(run_folder: Path) -> list[int]:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(run_folder / "export" / "parquet" / "observations").to_pylist()
    return [row["step"] for row in rows if row["metric"] == "reward"]


def logged_steps(log: Path) -> list[int]:
    events = [json.loads(line) for line in log.read_text().splitlines()]
    observed = [event["data"] for event in events if event["type"] == "Observation"]
    return [message["step"] for message in observed if "reward" in message["metrics"]]

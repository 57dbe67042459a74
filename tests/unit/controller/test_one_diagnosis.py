"""`supervise diagnose`, `kg diagnose RUN` and the coding agents' tool give the same findings for a recorded run."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.support.own_home import invoke, own_home

from oven_controller.mcp_server.allowed_runs import AllowedRuns
from oven_controller.mcp_server.server import build_server

LOGS = Path(__file__).parents[2] / "golden/data/logs"
RUNS = {"rate": LOGS / "run-grpo-lr-high.jsonl.gz", "healthy": LOGS / "episode-pretraining.healthy.jsonl.gz"}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create one run per recorded log, and one that has only started. The logs have no signatures."""
    home = own_home(tmp_path, monkeypatch)
    for name, file in RUNS.items():
        text = gzip.decompress(file.read_bytes()).decode()
        recorded = json.loads(text.partition("\n")[0])["subject"].split(".")[1]
        text = re.sub(r'"keys":\{[^}]*\}', '"keys":{}', text.replace(f'"oven.{recorded}.', f'"oven.{name}.'))
        home.create(name, recipe="grpo").export.write_text(text)
    first_line = text.partition("\n")[0].replace('"oven.healthy.', '"oven.empty.')
    home.create("empty", recipe="grpo").export.write_text(first_line + "\n")


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert invoke(*command, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("runs")
async def test_all_commands_agree(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {}
    async with Client(build_server(AllowedRuns(None))) as client:
        for run in RUNS:
            by_model = printed(capsys, "supervise", "diagnose", run)
            by_graph = printed(capsys, "kg", "diagnose", run)
            tool = (await client.call_tool("diagnose", {"run": run})).structured_content
            assert tool is not None and by_model["findings"] == by_graph["findings"] == tool["findings"]
            assert by_graph["graph"] == tool["graph"]
            kinds[run] = [f["kind"] for f in tool["findings"] if f["severity"] != "note"]
            causes = [cause["id"] for cause in tool["graph"]["causes"]] if tool["graph"] else []
            assert causes[:1] == kinds[run][:1], "a note is no reason to suggest causes"
    assert kinds["rate"][0] == "lr_too_high" and kinds["healthy"] == []


@pytest.mark.usefixtures("runs")
def test_the_graph_adds_paths_for_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("kg", "diagnose", "rate") == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "learning rate too high since step" in output and "lr_too_high ← SOLVES ← rollback_and_cut" in output


@pytest.mark.usefixtures("runs")
def test_a_run_without_observations(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "kg", "diagnose", "empty") == {"run": "empty", "findings": [], "graph": None}
    assert invoke("supervise", "diagnose", "empty") == 2
    assert "there is nothing to diagnose" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_a_phase_is_refused_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("kg", "diagnose", "rate", "--phase", "sft") == 2
    assert "--phase is sft, but rate is a run" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_a_mistyped_run_is_answered_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("kg", "diagnose", "rat") == 2
    assert "no symptom or run named 'rat'; did you mean 'rate'?" in capsys.readouterr().err

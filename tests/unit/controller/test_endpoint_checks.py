"""What a run's judges found out at their start, and how `status` says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oven_controller.cli.main import run as invoke
from oven_runs.home import endpoint_checks
from oven_runs.home.run_folder import Home

FOUND = {"provider": "deepseek", "model": "deepseek-reasoner", "can_judge": True, "failure": None, "latency_s": 1.0}


def test_status_says_what_each_judge_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    folder = Home().create("r", "toy")
    endpoint_checks.write(folder.path, "tricks", FOUND | {"missing_features": ("it offers no log-probabilities",)})
    failed = {"can_judge": False, "failure": "auth", "detail": "HTTP 401", "remedy": "check the key in XAI_API_KEY"}
    endpoint_checks.write(folder.path, "critic", FOUND | failed)
    (folder.path / endpoint_checks.FOLDER / "broken.json").write_text("{")
    with pytest.raises(SystemExit):
        invoke(["status", "r", "--json"])
    judges = json.loads(capsys.readouterr().out)["judges"]
    assert list(judges) == ["critic", "tricks"] and judges["critic"]["failure"] == "auth"
    checks = endpoint_checks.read(folder.path)
    assert checks["tricks"].summary() == "deepseek/deepseek-reasoner; it offers no log-probabilities"
    assert checks["critic"].summary().endswith("cannot judge: auth (HTTP 401); check the key in XAI_API_KEY")

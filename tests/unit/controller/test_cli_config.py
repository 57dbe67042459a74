"""`config show`: values, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.own_home import invoke, own_home

from oven_runs.home.run_folder import Home
from oven_runs.settings.resolution import resolve


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, dict[str, Any]]:
    assert invoke("config", "show", "--json", *args) == 0
    return {row.pop("setting"): row for row in json.loads(capsys.readouterr().out)}


def test_each_value_has_its_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oven.yaml").write_text(
        "# ours\nseed: 3\nrules:\n  window_ticks: 4\n  evidence_kinds: 1\n  contradictions: [[a, b]]\n  autonomy_of:\n"
        "    optimizer.lr_scale: advise\n"
    )
    monkeypatch.setenv("OVEN_SET_RULES__EVIDENCE_KINDS", "2")
    rows = shown(capsys, "--config", "oven.yaml", "--set", "minutes=4", "--set", "recipe_options.beta=0.5")
    file = {"origin": "file", "source": "oven.yaml"}
    assert rows["seed"] == {"value": 3, "line": 2, **file}
    assert rows["rules.window_ticks"] == {"value": 4, "line": 4, **file}
    assert rows["rules.contradictions"] == {"value": [["a", "b"]], "line": 6, **file}
    assert rows["rules.autonomy_of.optimizer.lr_scale"] == {"value": "advise", "line": 8, **file}
    variable = {"origin": "environment", "source": "OVEN_SET_RULES__EVIDENCE_KINDS"}
    assert rows["rules.evidence_kinds"] == {"value": 2, **variable}
    assert rows["minutes"] == {"value": 4.0, "origin": "set", "source": "--set minutes"}
    assert rows["recipe_options.beta"] == {"value": 0.5, "origin": "set", "source": "--set recipe_options.beta"}
    assert rows["rules.silent_ticks"] == {"value": 50, "origin": "default"}
    assert rows["recipe_options.group_size"] == {"value": 8, "origin": "default"}


def test_every_setting_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys)
    whole = {origin.setting: origin.value for origin in resolve().origins()}
    assert {name: row["value"] for name, row in rows.items()} == whole
    assert {"recipe", "port", "rules.majority", "committee.members", "headless"} <= set(whole)


def test_the_settings_of_a_run(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    folder = home.create("r", "attached")
    assert invoke("config", "show", "--run", "r") == 2
    assert "run 'r' has no settings in" in capsys.readouterr().err
    settings = resolve(attached=True, sets=["seed=7"]).settings
    folder.config.write_text(settings.model_dump_json())
    rows = shown(capsys, "-r", "r", "--set", "steps=5")
    assert rows["seed"] == {"value": 7, "origin": "run", "source": "the run's config.json"}
    assert rows["steps"]["origin"] == "set" and rows["recipe"]["value"] == "attached"


def test_an_address_with_a_password_is_refused_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--json",)):
        assert invoke("config", "show", "--set", "nats=nats://me:secret@h:4222", *more) == 2
        output = "".join(capsys.readouterr())
        assert "the address nats://h:4222 has a user or a password" in output and "secret" not in output

"""`kg diagnose`, `info` and `lint` as a person and a script call them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.plugged_command import PluggedCommand
from oven_kg.checked_graph import load
from oven_kg.cli.graph_commands import DIAGNOSE, INFO, LINT, QUERY
from oven_kg.cli.training_commands import CURRICULUM, TOKEN_PRIOR
from oven_kg.graph.graph_yaml import DATA


def said(capsys: pytest.CaptureFixture[str], command: PluggedCommand, *args: str) -> str:
    assert command.run(list(args)) == 0
    return capsys.readouterr().out


def test_diagnose_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, DIAGNOSE, "policy_collapse", "--phase", "grpo")
    assert "it is not a calibrated probability" in out
    first = out.split("remedies")[1].splitlines()[1]
    assert "rollback_and_cut" in first and "[run.rollback and optimizer.lr_scale:down]" in first
    assert re.search(r"grade [ABCD]; [\w, -]+\)", out)


def test_diagnose_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, DIAGNOSE, "loss_spike=0.5", "-k", "2", "--json"))
    assert found["graph"] == load().sha and len(found["remedies"]) == 2
    full = json.loads(said(capsys, DIAGNOSE, "loss_spike", "--json"))
    assert full["causes"][0]["p"] > found["causes"][0]["p"]


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, INFO, "--json"))["isolated"] == 0
    out = said(capsys, INFO)
    assert "data.mixture needs held_out" in out and "optimizer.lr_scale:up and run.rollback" in out


def test_lint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "sound" in said(capsys, LINT)
    broken = tmp_path / "mine.yaml"
    broken.write_text((DATA / "graph.yaml").read_text().replace("to: loss_spike", "to: loss_spikes", 1))
    assert LINT.run([str(broken)]) == 1
    assert "there is no node 'loss_spikes'" in capsys.readouterr().out


def test_a_wrong_question_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'loss_spike'"):
        DIAGNOSE.run(["los_spike"])
    with pytest.raises(ConfigError, match=r"write e\.g\. loss_spike=0\.5"):
        DIAGNOSE.run(["loss_spike=often"])
    with pytest.raises(ConfigError, match=r"write e\.g\. loss_spike=0\.5"):
        DIAGNOSE.run(["loss_spike=7"])
    with pytest.raises(ConfigError, match="cannot read the graph"):
        INFO.run(["--graph", str(tmp_path / "nothere.yaml")])


COMMANDS = {
    "diagnose": DIAGNOSE,
    "info": INFO,
    "lint": LINT,
    "curriculum": CURRICULUM,
    "token-prior": TOKEN_PRIOR,
    "query": QUERY,
}


def test_a_wrong_option_ends_as_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["diagnose"], ["query", "sing", "x"], ["diagnose", "loss_spike", "-k", "51"]):
        with pytest.raises(SystemExit) as ended:
            run(["kg", *args])
        assert ended.value.code == 2
        assert f"oven-controller kg {args[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_each_has_help_with_an_example(name: str, command: PluggedCommand, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert f"Example: oven-controller kg {name} " in out and command.summary[:20] in out

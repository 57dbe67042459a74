"""`kg diagnose`, `info` and `lint` as a person and a script call them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.support.command_line import call

from oven_core.errors import ConfigError, UnknownNameError
from oven_kg.checked_graph import load
from oven_kg.graph.graph_yaml import DATA


def output(capsys: pytest.CaptureFixture[str], command: str, *args: str) -> str:
    assert call(f"kg {command}", args) == 0
    return capsys.readouterr().out


def test_diagnose_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    out = output(capsys, "diagnose", "policy_collapse", "--phase", "grpo")
    assert "it is not a calibrated probability" in out
    first = out.split("remedies")[1].splitlines()[1]
    assert "rollback_and_cut" in first and "[run.rollback and optimizer.lr_scale:down]" in first
    assert re.search(r"grade [ABCD]; [\w, -]+\)", out)


def test_diagnose_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(output(capsys, "diagnose", "loss_spike=0.5", "-k", "2", "--json"))
    assert answer["graph"] == load().sha and len(answer["remedies"]) == 2
    full = json.loads(output(capsys, "diagnose", "loss_spike", "--json"))
    assert full["causes"][0]["p"] > answer["causes"][0]["p"]


def test_lint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "sound" in output(capsys, "lint")
    broken = tmp_path / "mine.yaml"
    broken.write_text((DATA / "graph.yaml").read_text().replace("to: loss_spike", "to: loss_spikes", 1))
    assert call("kg lint", [str(broken)]) == 1
    assert "refers to the missing node 'loss_spikes'" in capsys.readouterr().out


def test_a_curriculum_knows_the_topics_of_the_graph_or_of_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    triples = tmp_path / "school.csv"
    triples.write_text("subject,predicate,object\nmultiply,REQUIRES,add\n")
    assert "multiply builds on add" in output(capsys, "curriculum", "multiply=1/9", "add=1/9", "--graph", str(triples))
    assert "multiply builds on add" in output(
        capsys, "curriculum", "multiply=1/9", "add=1/9", "--needs", "multiply:add"
    )
    for graph in ([], ["--graph", str(triples)]):
        with pytest.raises(ConfigError, match="the graph has no topic 'divide'"):
            call("kg curriculum", ["divide=1/9", *graph])


def test_a_wrong_argument_is_answered_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'loss_spike'"):
        call("kg diagnose", ["los_spike"])
    with pytest.raises(ConfigError, match=r"write e\.g\. loss_spike=0\.5"):
        call("kg diagnose", ["loss_spike=often"])
    with pytest.raises(ConfigError, match=r"write e\.g\. loss_spike=0\.5"):
        call("kg diagnose", ["loss_spike=7"])
    with pytest.raises(ConfigError, match="cannot read the graph"):
        call("kg info", ["--graph", str(tmp_path / "nothere.yaml")])

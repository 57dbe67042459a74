"""The gym's command on a linear model: what it plays, resumes and prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench_testing.gym_line import BadStretch, NotANumber, Plain, TooHigh, line
from oven_bench.gym import command, runner
from oven_bench.gym.arms import Arm, alarm_rules
from oven_bench.gym.fault import Fault
from oven_core.errors import ConfigError, ProcessError, UnknownNameError
from oven_learner.link.link_interface import Link


class Failing:
    name = "failing"
    keeps_best = False

    def link(self, run: str, rng: Random) -> Link:
        raise RuntimeError("the arm is broken")


@pytest.fixture(autouse=True)
def small_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    families: list[type[Fault]] = [TooHigh, BadStretch, NotANumber, Plain]
    named = {arm.name: arm for arm in alarm_rules.ARMS}
    arms: list[Arm] = [*(named[name] for name in ("nothing", "rule.rollback_cut_8", "rule.raise_beta")), Failing()]
    for module, name in ((command, "families_by_name"), (runner, "families")):
        monkeypatch.setattr(module, name, lambda: {family.name: family for family in families})
    for module, name in ((command, "arms_by_name"), (runner, "arms")):
        monkeypatch.setattr(module, name, lambda: {arm.name: arm for arm in arms})
    monkeypatch.setattr(runner, "make", line)


def gym(folder: Path, *args: str, families: str = "line.too_high,line.plain") -> int:
    return command.STUDY.run([*args, "--families", families, "--seeds", "1", "--jobs", "1", "--resume", str(folder)])


def episodes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (folder / command.FILE).read_text().splitlines()]


def test_it_plays_what_is_missing_and_only_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gym(tmp_path, "--arms", "nothing") == 0
    first = (tmp_path / command.FILE).read_text()
    assert len(episodes(tmp_path)) == 2
    assert gym(tmp_path, "--arms", "nothing,rule.*") == 0
    capsys.readouterr()
    assert (tmp_path / command.FILE).read_text().startswith(first) and len(episodes(tmp_path)) == 6
    before = (tmp_path / command.FILE).read_text()
    assert gym(tmp_path, "--arms", "nothing,rule.*", "--json") == 0
    assert (tmp_path / command.FILE).read_text() == before
    figures = json.loads(capsys.readouterr().out)
    assert set(figures["arms"]) == {"nothing", "rule.rollback_cut_8", "rule.raise_beta", "oracle"}
    assert figures["arms"]["nothing"]["mean"] == 0.0 and figures["arms"]["rule.rollback_cut_8"]["mean"] > 0.5
    assert figures["verdict"] == "INCONCLUSIVE"


def test_people_get_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gym(tmp_path, "--arms", "rule.*") == 0
    printed = capsys.readouterr().out
    assert "rule.rollback_cut_8" in printed and "verdict: INCONCLUSIVE" in printed


def test_quick_plays_one_seed_of_every_third_family(tmp_path: Path) -> None:
    args = ["--quick", "--arms", "nothing", "--jobs", "1", "--resume", str(tmp_path)]
    assert command.STUDY.run(args) == 0
    played = {(row["family"], row["seed"]) for row in episodes(tmp_path)}
    assert played == {("line.too_high", 1), ("line.plain", 1)}


def test_a_failed_episode_is_named_and_the_others_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessError, match=r"2 episodes failed.*arm failing: RuntimeError: the arm is broken"):
        gym(tmp_path, "--arms", "failing,nothing", "--json")
    assert [row["arm"] for row in episodes(tmp_path)] == ["nothing", "nothing"]
    assert set(json.loads(capsys.readouterr().out)["arms"]) == {"nothing"}


def test_wrong_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'nothing'"):
        gym(tmp_path, "--arms", "noting")
    with pytest.raises(UnknownNameError, match="family of faults"):
        gym(tmp_path, families="line.nothing")
    (tmp_path / command.FILE).write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="line 1, is not a result of this bench"):
        gym(tmp_path)
    with pytest.raises(ConfigError, match="is a file"):
        gym(tmp_path / command.FILE)


def test_a_verdict_of_harms_ends_with_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_bench.gym.score.MIN_FAMILIES", 2)
    args = ["--arms", "nothing,rule.*", "--subject", "rule.raise_beta"]
    assert gym(tmp_path, *args, families="line.too_high,line.nan") == 1, "another rule would have helped"

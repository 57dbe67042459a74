"""The command over the linear model: what it runs, what it goes on with, what it says, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from tests.support.gym_line import BadStretch, NotANumber, Plain, TooHigh, line
from typer.testing import CliRunner

from oven_bench.fixed_rules import Alone, RuleLink
from oven_bench.gym import arm_registry, command, episode_rows, runner
from oven_bench.gym.arm import Arm
from oven_bench.gym.arms.remedy_on_alarm import NOTHING, fixed_rules
from oven_bench.gym.fault import Fault, fault
from oven_bench.gym.faults import catalogue
from oven_controller.cli.main import app
from oven_core.errors import ConfigError, ProcessError, UnknownNameError
from oven_learner.link.link_interface import Link


class Telling:
    """Does nothing, and keeps something."""

    name = "telling"

    def link(self, run: str, rng: Random) -> Link:
        class Kept(RuleLink):
            def report(self) -> dict[str, int]:
                return {"changes": len(self.changes)}

        return Kept(Alone())


class Learner(Telling):
    name = "learner"
    learns_from: ClassVar[str] = "telling"
    taught: ClassVar[list[list[Any]]] = []

    def learn(self, past: Sequence[Any]) -> None:
        self.taught.append(list(past))


class Failing:
    name = "failing"

    def link(self, run: str, rng: Random) -> Link:
        raise RuntimeError("no such luck")


@fault("line.hidden", kind="pretraining", written="held out")
class Hidden(TooHigh):
    """The same, which nothing was developed on."""


@fault("line.elsewhere", kind="images", written="trials set")
class Elsewhere(TooHigh):
    """The same, in another task."""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    families: list[type[Fault]] = [TooHigh, BadStretch, NotANumber, Plain, Hidden, Elsewhere]
    rules = [rule for rule in fixed_rules() if rule.name in ("rule.rollback_cut_8", "rule.raise_beta")]
    arms: list[Arm] = [NOTHING, *rules, Telling(), Learner(), Failing()]
    monkeypatch.setattr(catalogue, "families", lambda: {family.name: family for family in families})
    monkeypatch.setattr(arm_registry, "arms", lambda: {arm.name: arm for arm in arms})
    monkeypatch.setattr(runner, "make", line)


def gym(tmp_path: Path, **changed: Any) -> int:
    asked: dict[str, Any] = {
        "quick": False, "arms": ["nothing", "rule.*"], "families": ["line.too_high", "line.plain"], "seeds": 1,
        "first_seed": 1, "held_out": False, "tasks": [], "horizon": 100, "jobs": 1, "resume": tmp_path / "kept",
        "subject": "mesh+kg", "as_json": True, "plot": None,
    }  # fmt: skip
    return command.main(**{**asked, **changed})


def test_it_plays_what_is_missing_and_only_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gym(tmp_path, arms=["nothing"], plot=tmp_path / "gym.svg") == 0
    file = tmp_path / "kept" / episode_rows.FILE
    first = file.read_text()
    assert len(first.splitlines()) == 2
    assert gym(tmp_path) == 0
    assert file.read_text().startswith(first)
    assert len(file.read_text().splitlines()) == 6
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["arms"]) == {"nothing", "rule.rollback_cut_8", "rule.raise_beta", "oracle"}
    assert found["arms"]["nothing"]["mean"] == 0.0
    assert found["arms"]["rule.rollback_cut_8"]["mean"] > 0.5
    assert found["verdict"] == "INCONCLUSIVE"
    before = file.read_text()
    assert gym(tmp_path) == 0
    assert file.read_text() == before
    assert (tmp_path / "gym.svg").read_text().startswith("<svg")


def test_quickly_it_plays_one_seed_of_every_third_family_unless_they_are_named(tmp_path: Path) -> None:
    def played(**asked: Any) -> set[tuple[str, int]]:
        assert gym(tmp_path, quick=True, arms=["nothing"], seeds=None, **asked) == 0
        return {(row.family, row.seed) for row in episode_rows.read(asked["resume"])}

    assert played(families=[], resume=tmp_path / "few") == {("line.bad_stretch", 1), ("line.too_high", 1)}
    assert played(families=["line.plain"], resume=tmp_path / "one") == {("line.plain", 1)}


def test_episodes_of_another_length_are_played_anew_and_reported_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def played() -> dict[int, list[int]]:
        rows = episode_rows.read(tmp_path / "kept")
        return {horizon: [row.steps - row.onset for row in rows if row.horizon == horizon] for horizon in (100, 20)}

    assert gym(tmp_path, arms=["nothing"], families=["line.too_high"]) == 0
    short = {"arms": ["nothing"], "families": ["line.too_high"], "horizon": 20, "seeds": 2}
    assert gym(tmp_path, **short) == gym(tmp_path, **short) == 0
    assert played() == {100: [100], 20: [20, 20]}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["arms"]["nothing"]["episodes"] == 2
    with pytest.raises(ConfigError, match="--horizon 301"):
        gym(tmp_path, horizon=301)


def test_the_table_for_people_fits_eighty_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gym(tmp_path, as_json=False) == 0
    said = capsys.readouterr().out
    assert "rule.rollback_cut_8" in said
    assert "INCONCLUSIVE" in said
    assert max(map(len, said.splitlines())) <= 80


def test_held_out_families_are_played_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["line.hidden", "line.too_high", "line.bad_stretch"]
    with pytest.raises(UnknownNameError):
        gym(tmp_path, families=asked)
    assert gym(tmp_path, families=asked, held_out=True) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["held_out"]
    assert found["arms"]["nothing"]["families"] == 1
    assert found["training"]["nothing"]["families"] == 2
    assert "best_rule" in found["arms"]


def test_other_tasks_are_played_when_asked_for_and_change_nothing_else(tmp_path: Path) -> None:
    def played(folder: str, **asked: Any) -> set[str]:
        assert gym(tmp_path, arms=["nothing"], resume=tmp_path / folder, **asked) == 0
        return {row.family for row in episode_rows.read(tmp_path / folder)}

    with pytest.raises(UnknownNameError):
        gym(tmp_path, families=["line.elsewhere"])
    usual = {"line.too_high", "line.bad_stretch", "line.nan", "line.plain"}
    assert played("usual", families=[]) == usual
    assert played("one", families=[], tasks=["images"]) == {"line.elsewhere"}
    assert played("all", families=[], tasks=["*"]) == usual | {"line.elsewhere"}
    with pytest.raises(UnknownNameError, match="did you mean 'images'"):
        gym(tmp_path, tasks=["image"])


def test_where_nothing_is_held_out_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "families", lambda: {"line.plain": Plain})
    with pytest.raises(ConfigError, match="no installed family of faults was written for"):
        gym(tmp_path, held_out=True)


def test_an_arm_that_learns_is_told_of_other_training_families_only(tmp_path: Path) -> None:
    Learner.taught.clear()
    families = ["line.too_high", "line.bad_stretch", "line.hidden"]
    assert gym(tmp_path, arms=["telling", "learner"], families=families, held_out=True) == 0
    assert sorted(map(len, Learner.taught)) == [1, 1, 2]
    assert Learner.taught[0][0] == {"changes": 0}
    with pytest.raises(ConfigError, match="learns from 'telling'"):
        gym(tmp_path, arms=["learner"])


def test_where_several_tasks_are_played_it_is_told_of_the_other_tasks_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Learner.taught.clear()
    asked: dict[str, Any] = {"arms": ["telling", "learner", "rule.*"], "tasks": ["*"], "resume": tmp_path / "six"}
    asked["families"] = ["line.too_high", "line.plain", "line.elsewhere"]
    assert gym(tmp_path, **asked) == 0
    assert sorted(map(len, Learner.taught)) == [1, 1, 2], "by line.elsewhere, and by the two of pretraining"
    found = json.loads(capsys.readouterr().out)
    assert set(found["tasks"]) == set(found["leave_one_task_out"]) == {"pretraining", "images"}
    assert found["not_developed_on"]["tasks"] == ["images"]
    assert gym(tmp_path, as_json=False, subject="telling", **asked) == 0
    said = capsys.readouterr().out
    assert "tasks the agents were not developed on" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_failed_episode_is_named_and_the_others_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ProcessError, match=r"2 episodes failed.*arm failing: RuntimeError: no such luck"):
        gym(tmp_path, arms=["failing", "nothing"])
    assert [row.arm for row in episode_rows.read(tmp_path / "kept")] == ["nothing", "nothing"]
    assert set(json.loads(capsys.readouterr().out)["arms"]) == {"nothing"}


def test_a_wrong_request_is_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'nothing'"):
        gym(tmp_path, arms=["noting"])
    with pytest.raises(ConfigError, match="--jobs 0"):
        gym(tmp_path, jobs=0)
    with pytest.raises(ConfigError, match="there is no folder"):
        gym(tmp_path, plot=tmp_path / "none" / "gym.svg")


def test_the_exit_code_of_a_gym_that_says_harms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_bench.gym.verdict.FAMILIES", 2)
    families = ["line.too_high", "line.nan"]
    assert gym(tmp_path, families=families, subject="rule.raise_beta") == 1, "another rule would have helped"


def test_the_command_line_passes_it_all_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def main(**told: Any) -> int:
        asked.update(told)
        return 1

    monkeypatch.setattr("oven_core.plugins.load", lambda *_: main)
    line = ["gym", "--quick", "--arms", "nothing, rule.*", "--seeds", "2", "--held-out", "--plot", str(tmp_path / "p")]
    line += ["--tasks", "wide, dpo"]
    assert CliRunner().invoke(app, line).exit_code == 1
    assert asked["arms"] == ["nothing", "rule.*"]
    assert asked["families"] == []
    assert asked["tasks"] == ["wide", "dpo"]
    assert (asked["quick"], asked["seeds"], asked["held_out"], asked["jobs"]) == (True, 2, True, 2)

"""The base of the benches' commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import pytest

from oven_bench.bench_command import Bench, HomeFolder, Jobs, Json, home_folder, one_of, print_object
from oven_controller.cli.main import run
from oven_core import plugins


def _bench(
    kind: Annotated[list[str] | None, one_of(("quick", "slow"), "Which.")] = None,
    jobs: Jobs = 2,
    as_json: Json = False,
    home: HomeFolder = None,
) -> int:
    with home_folder(home) as folder:
        print_object({"kind": kind, "jobs": jobs, "home": folder.is_dir()}, as_json)
    return 1


BENCH = Bench("made-up", _bench, "measures nothing", "--json")


@pytest.mark.parametrize("args", [["--kind", "quick", "slow"], ["--kind", "quick", "--kind", "slow"]])
def test_an_option_that_repeats_takes_several_values(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert BENCH.run([*args, "--jobs", "3", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"kind": ["quick", "slow"], "jobs": 3, "home": True}


def test_for_people_the_object_has_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert BENCH.run(["--home", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert json.loads(said)["jobs"] == 2
    assert said.count("\n") > 3


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--kind", "neither"], "neither"),
        (["--jobs", "0"], "greater"),
        (["--jobs", "1", "2"], "2"),
        (["--other"], "--other"),
    ],
)
def test_what_it_does_not_know_is_refused(args: list[str], named: str) -> None:
    with pytest.raises(Exception, match=named) as refused:
        BENCH.run(args)
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize("name", plugins.points("benches"))
def test_every_bench_says_what_it_is_for_and_prints_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench = plugins.load("benches", "bench", name)
    assert bench.summary
    assert bench.run(["--help"]) == 0
    said = capsys.readouterr().out
    assert f"oven-controller bench {name}" in said
    assert "--json" in said


def test_a_wrong_option_ends_the_command_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["bench", "rates", "--arm", "nobody"])
    assert ended.value.code == 2
    assert "'nobody' is none of swarm, alone, plateau, cosine" in " ".join(capsys.readouterr().err.split())

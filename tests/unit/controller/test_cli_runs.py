"""Runs on the command line: naming one, and removing some."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests.support.own_home import invoke, own_home
from tests.support.replayed import a_run, left_behind

from oven_controller.cli.lazy_group import Command, Group
from oven_controller.cli.main import COMMANDS
from oven_runs.home.model_spend import SPEND_FILE, ModelSpend, Spend
from oven_runs.home.run_folder import Home, RunFolder

DAY = 86400
UNPRIVILEGED = """
import ctypes, os, sys
for capability in (1, 2):  # root's, to open any file; without effect for other users
    ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "oven_controller.cli.main", *sys.argv[1:]])
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


def aged(folder: RunFolder, days: float) -> RunFolder:
    """A run that changed last so many days ago, and was created then."""
    then = time.time() - days * DAY
    created = datetime.fromtimestamp(then).astimezone().isoformat()
    folder.write_info(replace(folder.info(), created=created, ended="completed"))
    os.utime(folder.path / "run.json", (then, then))
    return folder


def names(home: Home) -> list[str]:
    return [folder.run for folder in home.runs()]


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["log"],
        ["replay"],
        ["monitor"],
        ["down"],
        ["hold"],
        ["resume"],
        ["stop"],
        ["backtest", "learning_rate"],
        ["calibration"],
        ["runs", "rm", "--yes"],
    ],
    ids=" ".join,
)
def test_a_run_is_named_by_position_or_by_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["gone"], ["--run", "gone"], ["-r", "gone"], ["gone", "-r", "gone"]):
        assert invoke(*command, *arguments) == 2
        assert capsys.readouterr().err == "error: no run named 'gone'; there is no run yet\n"
    assert invoke(*command, "gone", "--run", "other") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "gone" in error and "other" in error


def test_every_command_about_one_run_takes_the_option_run(capsys: pytest.CaptureFixture[str]) -> None:
    """So one way works everywhere. A position is short for it where no other argument is in the way."""

    def paths(commands: Mapping[str, Command | Group]) -> Iterator[list[str]]:
        for name, command in commands.items():
            inner = paths(command.commands) if isinstance(command, Group) else [[]]
            yield from ([name, *rest] for rest in inner)

    for path in (path for group in COMMANDS.values() for path in paths(group)):
        assert invoke(*path, "--help") == 0
        page = capsys.readouterr().out
        if re.search(r"Usage: .*\bRUN\b", page):
            assert "--run" in page, path


def test_removing_runs(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("a", "b", "c", "d"):
        (home.create(run, "grpo").checkpoints / "weights").write_bytes(b"x" * 300_000)
    assert invoke("runs", "rm", "a", "--yes") == 0
    assert capsys.readouterr().out.startswith("removed a (3")
    assert set(names(home)) == {"b", "c", "d"} and not (home.path / "runs" / "a").exists()
    assert invoke("runs", "rm", "b", "-y", "c", "b", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["run"] for row in report["removed"]] == ["b", "c"]
    assert report["freed_bytes"] == sum(row["bytes"] for row in report["removed"]) > 600_000
    assert names(home) == ["d"] and home.cache.is_dir()


def test_if_one_run_is_up_none_is_removed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    over, up = home.create("over", "grpo"), home.create("up", "grpo")
    with up.hold():
        assert invoke("runs", "rm", "over", "up", "--yes") == 2
        captured = capsys.readouterr()
        assert (
            "run 'up' is up" in captured.err
            and "`oven-controller down up`" in captured.err
            and captured.err.count("\n") == 1
        )
        assert set(names(home)) == {"over", "up"}
        assert invoke("runs", "prune", "--keep", "0", "--yes", "--json") == 0
        assert [row["run"] for row in json.loads(capsys.readouterr().out)["removed"]] == ["over"]
    with up.hold(reading=True):
        assert invoke("runs", "rm", "up", "--yes") == 2
        assert "is being read by another command" in capsys.readouterr().err
    assert not over.path.exists() and up.path.exists()


def test_a_damaged_run_can_be_removed(home: Home) -> None:
    folder = home.create("cut", "grpo")
    (folder.path / "run.json").write_text("{")
    assert invoke("runs", "rm", "cut", "--yes") == 0
    assert not folder.path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_run_of_another_user_is_one_line_and_hides_no_other(home: Home) -> None:
    for run in ("mine", "theirs"):
        home.create(run, "grpo")
    lock = home.path / "runs" / "theirs" / "lock"
    lock.touch(mode=0o000)
    expected = {
        ("runs",): (0, "warning: run theirs is not listed, because only another user may read it"),
        ("status", "theirs"): (3, f"error: cannot use {lock} (Permission denied); check its owner"),
        ("status",): (3, ""),  # it shows `mine`, which has no log
    }
    for args, (code, line) in expected.items():
        done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, *args], capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (code, int(bool(line))), done.stderr
        assert done.stderr.startswith(line) and ("mine" in done.stdout) == ("theirs" not in args)


@pytest.mark.parametrize("name", ["..", ".", "../runs", "", "/tmp", "a/../a"])
def test_only_names_of_runs_can_be_removed(name: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.create("a", "grpo")
    assert invoke("runs", "rm", name, "--yes") == 2
    assert "no run named" in capsys.readouterr().err and names(home) == ["a"]


def test_a_link_is_not_followed(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside = home.create("a", "grpo").path.rename(tmp_path / "outside")
    (home.path / "runs" / "a").symlink_to(outside)
    assert invoke("runs", "rm", "a", "--yes") == 2
    assert f"is a link to {outside}" in capsys.readouterr().err and (outside / "run.json").exists()


def test_pruning(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for run, days in (("new", 0), ("week", 7), ("month", 30), ("year", 365)):
        aged(home.create(run, "grpo"), days)
    resumed = home.runs()[-1]
    assert resumed.run == "year"
    resumed.export.write_text("")  # an old run whose log grew today
    assert invoke("runs", "prune", "--older-than", "20", "--keep", "3", "--yes") == 0
    assert capsys.readouterr().out == "nothing to remove\n"
    assert invoke("runs", "prune", "--older-than", "5", "--keep", "2", "--yes") == 0
    assert names(home) == ["new", "week", "year"]
    assert "removed month" in capsys.readouterr().out
    assert invoke("runs", "prune", "--keep", "1", "--yes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[-1].endswith(" freed") and names(home) == ["new"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "add --keep N, --older-than DAYS, or both"),
        (["--older-than", "nan"], "--older-than nan is not a valid number of days"),
        (["--older-than", "-3"], "--older-than -3 is not a valid number of days"),
        (["--keep", "-1"], "--keep -1 is negative"),
        (["--keep", "0"], "add --yes"),
    ],
)
def test_prune_refuses_wrong_options(
    args: list[str], words: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create("a", "grpo")
    assert invoke("runs", "prune", *args) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1 and names(home) == ["a"]


@pytest.mark.parametrize(("answer", "remaining"), [("y\n", []), ("n\n", ["a"]), ("\n", ["a"])])
def test_runs_are_removed_only_after_confirmation(
    answer: str, remaining: list[str], home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create("a", "grpo")
    stdin = io.StringIO(answer)
    stdin.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    assert invoke("runs", "rm", "a", "--json") == (1 if remaining else 0)
    captured = capsys.readouterr()
    assert "Remove this run (" in captured.err and names(home) == remaining
    assert ("nothing was removed" in captured.err) == bool(remaining)
    assert remaining or json.loads(captured.out)["removed"][0]["run"] == "a"


def test_a_new_home_has_a_gitignore(tmp_path: Path) -> None:
    made = Home(tmp_path / "deep" / "home")
    made.create("r", "grpo")
    assert (made.path / ".gitignore").read_text() == "*\n"
    (made.path / ".gitignore").unlink()
    made.create("s", "grpo")
    assert not (made.path / ".gitignore").exists()
    own = tmp_path / "own"
    own.mkdir()
    Home(own).create("r", "grpo")
    assert not (own / ".gitignore").exists()


def test_status_says_what_judges_have_cost(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_run(end=False)
    log.tick(2, **{"committee/tokens": 500.0, "committee/cost_usd": 0.25})
    folder = left_behind(home, log)
    folder.config.write_text('{"committee": {"budget": {"usd": 5, "tokens": null}}}')
    assert invoke("status", "--json") == 0
    judges = json.loads(capsys.readouterr().out)["judge_costs"]
    assert judges == {"cost_usd": 0.5, "tokens": 1000, "calls": None, "budget": {"usd": 5}}, "of the log"

    books = ModelSpend(folder.path / SPEND_FILE)
    for cost in (Spend(2, 1, 0, 900, 100, 0.75), Spend(1, 0, 1, 50, 5, 0.0)):
        held = books.reserve("judges/critic", cost)
        assert isinstance(held, int)
        books.book(held, cost)
    books.close()
    assert invoke("status", "--json") == 0
    judges = json.loads(capsys.readouterr().out)["judge_costs"]
    assert judges["members"]["critic"] == {
        "cost_usd": 0.75, "tokens": 1055, "calls": 3, "unanswered_calls": 1, "unpriced_calls": 1
    }  # fmt: skip
    assert invoke("status") == 0
    output = capsys.readouterr().out
    assert "judges: $0.7500 of $5, 1,055 tokens, 3 calls\n" in output
    assert "1 of the calls got no answer and are counted at their maximum cost" in output

    (folder.path / SPEND_FILE).write_bytes(b"no database" * 100)
    assert invoke("status", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["judge_costs"] == {} and any("spend.sqlite cannot be read" in note for note in report["notes"])

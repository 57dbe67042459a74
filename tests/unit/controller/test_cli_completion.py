"""Shell completion: which names are offered: Offered, and that it never raises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.own_home import own_home

from oven_controller.cli.main import run
from oven_runs.home.run_folder import Home, RunFolder

Offered = Callable[[str], list[str]]
KNOBS = ["grad.clip", "optimizer.lr_scale"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return own_home(tmp_path, monkeypatch)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """What bash is told for a line; the word after a last space is empty."""

    def complete(line: str) -> list[str]:
        words = f"oven-controller {line}"
        monkeypatch.setenv("_OVEN_CONTROLLER_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        with pytest.raises(SystemExit) as caught:
            run([])
        assert not caught.value.code
        captured = capsys.readouterr()
        assert captured.err == ""
        return [line.partition(",")[2] for line in captured.out.splitlines() if line]  # after the type

    return complete


def started(folder: RunFolder) -> None:
    """A log that begins as a run's does, with what the learner announced."""
    start = {"type": "RunStarted", "actuators": [{"name": name} for name in KNOBS]}
    lines = [{"seq": 1, "data": {"type": "AgentStatus"}}, {"seq": 2, "data": start}]
    folder.export.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_runs(home: Home, offered: Offered) -> None:
    assert offered("status ") == []
    home.create("first", "grpo"), home.create("second", "grpo")
    lines = (
        "status ",
        "log --run ",
        "mute learning_rate -r ",
        "up --resume --run ",
        "runs rm first ",
        "agent run learning_rate --run ",
    )
    for line in lines:
        assert set(offered(line)) == {"first", "second"}
    assert offered("replay fi") == ["first"]


def test_agents_are_those_of_the_run(home: Home, offered: Offered) -> None:
    assert "curriculum" in offered("mute ")
    folder = home.create("r", "grpo")
    folder.add_user("agent", "scout")
    folder.add_user("agent", "agents-1", ["learning_rate", "weight_decay"])
    folder.add_user("mesh", "mesh")
    assert offered("mute ") == ["learning_rate", "scout", "weight_decay"]
    folder.config.write_text(json.dumps({"agents": ["/tmp/mine.py"]}))
    assert offered("trust mi") == ["mine"]


def test_knobs_are_those_that_the_run_announced(home: Home, offered: Offered) -> None:
    assert set(offered("set optim")) == {"optimizer.lr_scale", "optimizer.warmup", "optimizer.weight_decay"}
    started(home.create("r", "grpo"))
    assert offered("set ") == KNOBS
    assert offered("trust lr grad") == ["grad.clip"]
    with home.find("r").export.open("a") as log:
        for name in ("teacher.active", KNOBS[0]):
            log.write(json.dumps({"seq": 3, "data": {"type": "ActuatorAnnounced", "actuator": {"name": name}}}) + "\n")
    assert offered("set ") == [*KNOBS, "teacher.active"]
    home.create("other", "grpo")
    assert offered("set --run r grad") == ["grad.clip"]
    assert len(offered("set --run other grpo")) == 3


@pytest.mark.parametrize("damage", ["[", "[1]", "null", '{"agents": 3}', "[" * 9999, "\xff"])
def test_completion_never_raises_on_damaged_files(home: Home, damage: str, offered: Offered) -> None:
    folder = home.create("r", "grpo")
    folder.server.folder.mkdir(parents=True)
    for path in (folder.config, folder.export, folder.server.folder / "users.json"):
        path.write_text(damage.replace("[1]", '[1] "RunStarted"'), encoding="latin-1")
    (folder.path / "run.json").write_text(damage)
    for line in ("status ", "mute ", "set ", "review nothere/", "set --run nothere "):
        offered(line)


def test_a_completion_loads_nothing_heavy(home: Home) -> None:
    started(home.create("r", "grpo"))
    heavy = ("nats", "pydantic", "torch", "psutil", "asyncio")
    code = (
        "import sys, types; from oven_controller.cli import completion\n"
        "here = types.SimpleNamespace(params={})\n"
        "assert completion.runs(here, None, '') == ['r'] and completion.agents(here, None, '')\n"
        "assert completion.knobs(here, None, '')\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"

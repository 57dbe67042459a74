"""The batch script of `oven-controller slurm`: valid bash, the directives, and the command of each rank."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oven_controller.cli.main import run


def slurm(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        run(["slurm", *args])
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out, captured.err


def directives(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))


@pytest.mark.parametrize("home", ["plain", "with a space and 'quotes'"])
def test_bash_and_shellcheck_accept_the_script(
    home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / home))
    code, script, _ = slurm(capsys, "--run", "r", "--", "train.py", "--note", "it's $HOME; {a,b}")
    assert code == 0
    path = tmp_path / "job.sh"
    path.write_text(script)
    shellcheck = Path(sys.executable).parent / "shellcheck"
    for command in (["bash", "-n"], [str(shellcheck), "--severity=style"]):
        done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    line = f'{script.splitlines()[13]}; printf %s "$OVEN_HOME"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == str(
        tmp_path / home
    )


def test_one_task_per_gpu_unless_the_command_is_a_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    _, script, _ = slurm(capsys, "--run", "r", "--nodes", "2", "--gpus-per-node", "4", "--", "train.py")
    assert directives(script).items() >= {
        "job-name": "r", "nodes": "2", "ntasks-per-node": "4", "gpus-per-node": "4", "requeue": "",
        "signal": "B:USR1@1200",
    }.items()  # fmt: skip
    assert "    python train.py &\n" in script
    _, script, _ = slurm(capsys, "--run", "r", "--gpus-per-node", "0", "--", "./train", "a b")
    assert directives(script)["ntasks-per-node"] == "1" and "gpus-per-node" not in directives(script)
    assert "    ./train 'a b' &\n" in script
    _, script, _ = slurm(capsys, "--run", "r", "--ntasks-per-node", "1", "--", "accelerate", "launch", "train.py")
    assert directives(script)["ntasks-per-node"] == "1" and "    accelerate launch train.py &\n" in script


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--run", "a.b", "--", "train.py"], "run 'a.b' is not a usable name"),
        (["--", "train.py"], "--run"),
        (["--run", "r"], "COMMAND"),
        (["--run", "r", "--nodes", "0", "--", "train.py"], "--nodes"),
    ],
)
def test_bad_requests(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = slurm(capsys, *args)
    assert code == 2 and message in error

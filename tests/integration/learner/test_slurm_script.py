"""The batch script of `oven-controller slurm` under bash, with stand-ins for srun and scontrol, on two gloo ranks."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.integration.conftest import ROOT, Stack, wait_for
from tests.support.containers import programs
from tests.support.paced_training import allow

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOB_ID = str(os.getpid())  # it determines the port of rank 0
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do echo "$1" >>srun-options; shift; done
trap 'kill -TERM "${tasks[@]}"' TERM
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    tasks+=($!)
done
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit $code
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then echo "${3//,/$'\\n'}"; else echo "$@" >>scontrol-requests; fi
"""


def start(stack: Stack, script: Path, path: str) -> subprocess.Popen[str]:
    slurm = {"SLURM_JOB_ID": JOB_ID, "SLURM_JOB_NODELIST": "127.0.0.1,127.0.0.2", "SLURM_NTASKS": "2"}
    process = subprocess.Popen(
        ["bash", str(script)],
        env=stack.env | slurm | {"PATH": path, "GLOO_SOCKET_IFNAME": "lo", "OVEN_HOME": "/nowhere"},
        cwd=stack.folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    stack.started.append(process)
    return process


def test_a_signalled_job_is_queued_again_and_continues_its_run(stack: Stack) -> None:
    folder = stack.folder
    path = programs(folder / "bin")
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    training = [str(ROOT / "tests" / "support" / "paced_training.py"), str(folder)]
    code, text = stack.command("slurm", "--run", "r", "--gpus-per-node", "2", "--cpus-per-task", "3", "--", *training)
    assert code == 0, text
    script = folder / "job.sh"
    script.write_text(text)
    (folder / "limit").write_text("1000000")
    allow(folder, 10)
    reached = folder / "reached"
    requests = folder / "scontrol-requests"

    first = start(stack, script, path)
    wait_for(lambda: first.poll() is not None or (reached.exists() and reached.read_text() == "10"), "step 10")
    assert first.poll() is None, first.communicate()[0]
    os.kill(first.pid, signal.SIGUSR1)
    assert "operator: stop" in stack.read_until(first, "operator: stop")
    allow(folder, 1000000)
    code, output = stack.end_of(first)
    assert code == 0, output
    assert requests.read_text() == f"requeue {JOB_ID}\n", output
    assert (folder / "srun-options").read_text().split() == ["--kill-on-bad-exit=1", "--cpus-per-task=3"]
    step = int((folder / "step").read_text())
    assert 10 < step < 1000000
    assert stack.json("status", "r")["status"] == "stopped"

    (folder / "limit").write_text(str(step + 20))
    code, output = stack.end_of(start(stack, script, path))
    assert code == 0, output
    assert (folder / "step").read_text() == str(step + 20)
    assert requests.read_text() == f"requeue {JOB_ID}\n", "a completed job is not queued again"
    assert stack.json("status", "r")["status"] == "completed"
    log = (stack.run_folder("r").path / "log.jsonl").read_text()
    assert log.count('"type": "RunStarted"') == 2
    assert stack.command("replay", "r", "--verify")[0] == 0

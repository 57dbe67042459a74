"""Workers of the benches end with the command that started them, even by kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.integration.conftest import WAIT_S, family

# Tasks that say that they have begun and never end.
PARENT = """
import signal
from oven_bench.study import run_tasks

def endless(task):
    print("begun", flush=True)
    signal.pause()

if __name__ == "__main__":
    list(run_tasks(endless, [1, 2], 2))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_workers_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert [parent.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    processes = family(parent.pid)
    assert len(processes) >= 3
    parent.send_signal(number)
    parent.wait(WAIT_S)
    parent.stdout.close()
    survivors = psutil.wait_procs(processes, timeout=WAIT_S)[1]
    for process in survivors:
        process.kill()
    assert survivors == []

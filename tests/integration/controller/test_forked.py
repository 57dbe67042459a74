"""A process that the tests fork is what the command would be, started by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import ForkServer

PROGRAM = """
import json, os, signal, subprocess, sys
own = {
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path[:2], "cwd": os.getcwd(),
    "env": {key: os.environ[key] for key in sorted(os.environ)}, "leads": os.getsid(0) == os.getpid(),
    "parent": os.getppid(), "stdin": sys.stdin.read(), "signals": [str(signal.getsignal(n)) for n in (2, 13, 15)],
    "open": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
}
own["signals"] = [said.partition(" at 0x")[0] for said in own["signals"]]
print(json.dumps(own), flush=True)
if sys.argv[1:] == ["waits"]:
    signal.pause()
if sys.argv[1:] == ["raises"]:
    raise ValueError("on purpose")
child = subprocess.run([sys.executable, "-c", "import os; print(os.getppid())"], stdout=subprocess.PIPE, text=True)
assert int(child.stdout) == os.getpid()
sys.exit(7)
"""


def ended(popen: Any, path: Path, *args: str, stop: int = 0) -> tuple[int, dict[str, Any], str]:
    """(exit code, what it found itself to be, what it wrote to stderr)."""
    process = popen(
        [sys.executable, str(path / "program.py"), *args],
        cwd=path,
        env={"PATH": os.environ["PATH"], "OVEN_RUN_DIR": "x", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    line = process.stdout.readline()
    if stop:
        process.send_signal(stop)
    _, wrote = process.communicate(timeout=60)
    report = json.loads(line)
    report["open"] = [fd for fd in report["open"] if fd < 3]
    return process.returncode, report, wrote


@pytest.mark.parametrize(
    ("args", "stop", "code"),
    [((), 0, 7), (("raises",), 0, 1), (("waits",), signal.SIGTERM, -signal.SIGTERM), (("waits",), signal.SIGINT, -2)],
)
def test_a_forked_program_behaves_like_a_new_process(
    stack_forks: ForkServer, tmp_path: Path, args: tuple[str, ...], stop: int, code: int
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    forked, cold = (ended(popen, tmp_path, *args, stop=stop) for popen in (stack_forks.popen(), subprocess.Popen))
    assert forked[0] == cold[0] == code, (forked, cold)
    assert forked[1] == cold[1] and forked[1]["parent"] == os.getpid()
    assert forked[2].splitlines()[-1:] == cold[2].splitlines()[-1:]

"""The command line in processes that are forked from one that has imported what most commands need: starting an
interpreter and importing takes longer than most commands do."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED = (
    "oven_controller.cli.main",
    "oven_controller.log.replay",
    "oven_controller.runs.log_reader",
    "oven_controller.settings.model",
    "oven_controller.stack.dry_run",
    "oven_controller.stack.health",
    "oven_controller.runs.operator_client",
    "oven_controller.stack.preflight_checks",
    "oven_controller.stack.up",
)


class WarmCommands:
    """Runs one command at a time."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).with_name("standins"))},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, args: Sequence[str], env: Mapping[str, str], cwd: Path) -> tuple[int, str]:
        """(exit code, what was printed). The command finds `env` alone, with a PYTHONPATH."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        with tempfile.NamedTemporaryFile("r") as said:
            print(json.dumps([args, dict(env), str(cwd), said.name]), file=self._parent.stdin, flush=True)
            code = int(self._parent.stdout.readline())
            return code, said.read()

    def close(self) -> None:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait()
        self._parent.stdout.close()


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        if not (child := os.fork()):
            become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(args: list[str], env: dict[str, str], cwd: str, said: str) -> Any:
    """What `python -m oven_controller.cli.main` would be."""
    from oven_controller.cli.main import run

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:1] = [cwd, *env["PYTHONPATH"].split(os.pathsep)]
    run(args)
    sys.exit()


if __name__ == "__main__":
    main()

"""The real thing: `up` with the real server, mesh, agents and the grpo recipe, in a home that the session shares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.integration.conftest import violations
from tests.support.forked import COLD, ForkServer

from oven_core.protocol.events import Event

LIMIT_S = 300


class Oven:
    """The command line, with a home of its own. Its processes are forked, but where a call asks for cold ones."""

    def __init__(self, home: Path, forks: ForkServer) -> None:
        self.home = home
        self.popen = forks.popen()
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        self._env = parent_env | {"OVEN_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = self.popen(
            [sys.executable, "-m", "oven_controller.cli.main", *args],
            env=self._env | dict(env or {}),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    def __call__(self, *args: str, cold: bool = False) -> tuple[int, str]:
        """(exit code, everything it printed). `cold`: it and all that it starts import what they need themselves."""
        process = self.start(*args, env={COLD: "1"} if cold else None)
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output

    def until(self, process: subprocess.Popen[str], *texts: str) -> str:
        """What it prints, up to the line with which all of `texts` have come."""
        assert process.stdout is not None
        output, missing = "", set(texts)
        for line in process.stdout:
            output += line
            missing -= {text for text in missing if text in line}
            if not missing:
                return output
        raise AssertionError(f"{missing} never came:\n{output}")

    def events(self, run: str) -> list[Event]:
        return [Event.from_line(line) for line in self.log(run)]

    def log(self, run: str) -> list[str]:
        return (self.home / "runs" / run / "log.jsonl").read_text().splitlines()

    def end_all(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(LIMIT_S)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(scope="session")
def oven(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oven]:
    """The warm policy is made once, also where several workers of xdist share the tests."""
    home = tmp_path_factory.mktemp("oven")
    if "PYTEST_XDIST_WORKER" in os.environ:
        cache = tmp_path_factory.getbasetemp().parent / "cache"
        cache.mkdir(exist_ok=True)
        (home / "cache").symlink_to(cache)
    made = Oven(home, forks)
    yield made
    made.end_all()


@pytest.fixture(autouse=True)
def _nothing_is_refused(oven: Oven) -> Iterator[None]:
    """No role of the stack lacks a permission for what it does."""
    yield
    assert violations(oven.home) == []

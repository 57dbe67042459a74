"""A stack without torch: the real server, mesh and agents, and stand-ins for the recipe and the learner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.forked import STACK, ForkServer, fork_server
from tests.support.tls_stack import TlsStack

from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("controller", "agents", "learner", "tui", "bench")
ENTRY_POINTS = """
[oven.recipes]
toy = oven_standins:RECIPE
[oven.agents]
learning_rate = oven_agents.shipped.learning_rate:LearningRate
curriculum = oven_agents.shipped.curriculum:Curriculum
[oven.commands]
backtest = oven_agents.review.backtest:main
"""
PROCESSES = {"learner": "oven_standins:learner", "kg": "", "monitor": "", "notify": "", "metrics": ""}
"""Functions of the stack's processes, in place of the usual ones; empty: that process is not installed."""
MONITOR = {"monitor": "oven_tui.main:main"}
WAIT_S = 60


class Stack:
    """Runs the command line in processes of its own, with a home and entry points of its own. They are forked, but for
    agents."""

    def __init__(self, folder: Path, forks: ForkServer) -> None:
        self.folder = folder
        self.popen = forks.popen()
        self.home = Home(folder / "home")
        metadata = folder / "meta" / "oven_controller-0.dist-info"  # the first of a name on the path is the one
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: oven-controller\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
        path = [metadata.parent, ROOT / "tests" / "support" / "standins", *(ROOT / name for name in PACKAGES)]
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        self.env = parent_env | {"PYTHONPATH": os.pathsep.join(map(str, path)), "OVEN_HOME": str(self.home.path)}
        self.install({})
        self.started: list[subprocess.Popen[str]] = []

    def install(self, processes: dict[str, str]) -> None:
        """Set the functions of the stack's processes: these, and otherwise those of PROCESSES."""
        self.env["OVEN_TEST_PROCESSES"] = json.dumps(PROCESSES | processes)

    def start(
        self, *args: str, folder: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """A command that goes on; its stdout and stderr together are `.stdout`."""
        process: subprocess.Popen[str] = self.popen(
            [sys.executable, "-m", "oven_controller.cli.main", *args],
            env=self.env if env is None else env,
            cwd=folder or self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.started.append(process)
        return process

    def up(self, run: str, *args: str, until: str) -> subprocess.Popen[str]:
        """`up --headless`, read until a line holds `until`."""
        process = self.start("up", "--headless", "--recipe", "toy", "--run", run, *args)
        output = self.read_until(process, until)
        assert until in output, output
        return process

    def read_until(self, process: subprocess.Popen[str], text: str) -> str:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if text in line:
                break
        return output

    def command(self, *args: str) -> tuple[int, str]:
        """(exit code, what it printed)."""
        return self.command_in(self.folder, self.env, *args)

    def command_in(self, folder: Path, env: Mapping[str, str], *args: str) -> tuple[int, str]:
        """The same elsewhere, with another environment."""
        process = self.start(*args, folder=folder, env=env)
        output, _ = process.communicate()
        return process.returncode, output

    def end_of(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        try:
            output, _ = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"did not end within {WAIT_S} s:\n{(late.output or b'').decode()}") from None
        return process.returncode, output

    def json(self, *args: str) -> Any:
        code, output = self.command(*args, "--json")
        assert code == 0, output
        return json.loads(output)

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(self.home.path / "runs" / run)

    def end_all(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait(WAIT_S)
            if process.stdout is not None:
                process.stdout.close()


def violations(home: Path) -> list[str]:
    """What the servers of a home's runs refused to those who are connected: every role may do what it does."""
    logs = home.glob("runs/*/logs/nats-server.log")
    return [line for log in logs for line in log.read_text(errors="replace").splitlines() if " Violation" in line]


@pytest.fixture(scope="session")
def stack_forks() -> Iterator[ForkServer]:
    """What forks the processes of stacks without torch."""
    with fork_server(STACK) as server:
        yield server


@pytest.fixture
def stack(tmp_path: Path, stack_forks: ForkServer) -> Iterator[Stack]:
    made = Stack(tmp_path, stack_forks)
    yield made
    made.end_all()
    assert violations(made.home.path) == []


@pytest.fixture
def tls_stack(stack: Stack) -> Iterator[TlsStack]:
    """A stack over TLS, and persons elsewhere; `begin` starts it."""
    pytest.importorskip("cryptography")
    made = TlsStack(stack)
    yield made
    stack.end_all()
    made.kill_server()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A fresh server for the run `r`, with the users that the tests ask for."""
    folder = ServerFolder(tmp_path / "nats", "r")
    for role in ("admin", "learner", "mesh", "history", "operator", "monitor"):
        folder.add_user(role, role)
    folder.add_user("agent", "lr")
    started = await EmbeddedServer.start(folder, tmp_path / "nats-server.log")
    yield started
    await started.stop()


def wait_for(true: Callable[[], Any], what: str) -> None:
    """Until it holds; AssertionError says that it never did."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]

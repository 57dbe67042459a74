"""docker/compose.yaml's commands as processes here instead of containers there: the same words in the same order, with
this machine's folders and ports in the place of volumes and names. What only an engine can show is not shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.integration.conftest import ROOT, WAIT_S, Stack

from oven_runs.server.embedded_server import find_binary, free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
RUN = "first"


def wait_for(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


class Containers:
    """Starts a service's command with its volumes as folders here."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.folder = stack.folder
        self.port, self.health = free_port(), free_port()
        for name in ("keys", "store", "learner-key", "monitor-key"):
            (self.folder / name).mkdir()
        programs = self.folder / "bin"
        programs.mkdir()
        for name, command in (
            ("python", f'"{sys.executable}"'),
            ("oven-controller", f'"{sys.executable}" -m oven_controller.cli.main'),
            ("nats-server", f'"{find_binary()}"'),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (programs / name).chmod(0o755)
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def here(self, text: str) -> str:
        """The text of the file with this machine's addresses and folders."""
        home = self.stack.home.path
        for there, here in (
            ("$$", "$"),
            ("${OVEN_RUN:?the run's name, such as OVEN_RUN=first}", RUN),
            ("${OVEN_RUN}", RUN),
            ("${OVEN_AUTONOMY:-observe}", "auto"),
            ("${OVEN_SCRIPT:-raw_loop.py}", str(ROOT / "examples" / "raw_loop.py")),
            ("nats://nats:4222", f"nats://127.0.0.1:{self.port}"),
            ("0.0.0.0:4222", f"127.0.0.1:{self.port}"),
            ("127.0.0.1:8222", f"127.0.0.1:{self.health}"),
            ("/oven/runs", f"{home}/runs"),
            ("/learner-key", f"{self.folder}/learner-key"),
            ("/monitor-key", f"{self.folder}/monitor-key"),
            (" /store", f" {self.folder}/store"),
        ):
            text = text.replace(there, here)
        return re.sub(r"/keys(?!\.json)", f"{self.folder}/keys", text)

    def start(self, name: str, command: list[str] | None = None) -> subprocess.Popen[str]:
        service = SERVICES[name]
        environment = {
            key: self.here(str(value)) for key, value in service.get("environment", {}).items() if value is not None
        }
        words = command or [*service.get("entrypoint", []), *service["command"]]
        process = subprocess.Popen(
            [self.here(word) for word in words],
            env=self.stack.env | environment | {"PATH": self.path},
            cwd=self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.stack.started.append(process)
        return process

    def healthy(self, name: str) -> bool:
        kind, *test = SERVICES[name]["healthcheck"]["test"]
        if name == "nats":  # there is no wget here, perhaps
            try:
                with urllib.request.urlopen(self.here(test[-1]), timeout=3) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False
        assert kind == "CMD-SHELL"
        return self.start(name, ["sh", "-c", *test]).wait(WAIT_S) == 0


@pytest.fixture
def containers(stack: Stack) -> Iterator[Containers]:
    made = Containers(stack)
    yield made
    for process in stack.started:  # `up` in order, so that it takes its children along
        if process.poll() is None and "oven_controller.cli.main" in " ".join(psutil.Process(process.pid).cmdline()):
            process.terminate()
            process.communicate(timeout=WAIT_S)


def test_the_services_work_together(containers: Containers) -> None:
    stack = containers.stack
    bootstrap = containers.start("bootstrap")
    code, output = stack.end_of(bootstrap)
    assert code == 0, output
    folder: Path = containers.folder
    assert [path.name for path in sorted((folder / "learner-key").iterdir())] == ["keys.json", "learner.nk"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*key*/**/*.nk"))

    nats = containers.start("nats")
    wait_for(lambda: containers.healthy("nats"))
    up = containers.start("stack")
    wait_for(lambda: containers.healthy("stack"))

    code, output = stack.end_of(containers.start("learner"))
    assert code == 0, output
    monitor = containers.start("monitor")
    output = stack.read_until(monitor, "RunEnded")
    assert "RunStarted" in output and "Observation" in output and "RunEnded" in output, output

    up.terminate()  # `docker compose stop stack`
    code, output = stack.end_of(up)
    assert code == 0, output
    assert not containers.healthy("stack")
    assert stack.command("replay", RUN)[0] == 0

    up = containers.start("stack")  # and once more: it goes on with the run
    wait_for(lambda: containers.healthy("stack"))
    up.terminate()
    assert stack.end_of(up)[0] == 0
    nats.terminate()
    stack.end_of(nats)

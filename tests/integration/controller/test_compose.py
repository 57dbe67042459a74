"""docker/compose.yaml's commands as processes here instead of containers there: the same words in the same order, with
this machine's folders and ports in the place of volumes and names. What only an engine can show is not shown."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.integration.conftest import ROOT, WAIT_S, Stack
from tests.support.containers import Containers
from tests.support.paced_training import allow

from oven_runs.server.embedded_server import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SERVICES: dict[str, dict[str, Any]]
CLUSTER: dict[str, dict[str, Any]]
SERVICES, CLUSTER = (
    yaml.safe_load((ROOT / "docker" / name).read_text())["services"]
    for name in ("compose.yaml", "compose.cluster.yaml")
)
RUN = "first"


def wait_for(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.05)


class Services(Containers):
    """A compose file's services, with this machine's folders and ports. `nodes` are the names of its servers."""

    def __init__(self, stack: Stack, services: dict[str, dict[str, Any]], nodes: list[str]) -> None:
        self.services = services
        folder, home = stack.folder, stack.home.path
        self.ports = {node: free_port() for node in nodes}
        for name in ("keys", "store", "learner-key", "monitor-key"):
            (folder / name).mkdir()
        super().__init__(
            stack,
            [
                ("$$", "$"),
                ("${OVEN_RUN:?the run's name, such as OVEN_RUN=first}", RUN),
                ("${OVEN_RUN}", RUN),
                ("${OVEN_AUTONOMY:-observe}", "auto"),
                ("${OVEN_SCRIPT:-raw_loop.py}", str(ROOT / "examples" / "raw_loop.py")),
                *((f"{node}:4222", f"127.0.0.1:{port}") for node, port in reversed(self.ports.items())),
                ("0.0.0.0:4222", f"127.0.0.1:{self.ports[nodes[0]]}"),
                ("127.0.0.1:8222", f"127.0.0.1:{free_port()}"),
                ("/oven/runs", f"{home}/runs"),
                ("/learner-key", f"{folder}/learner-key"),
                ("/monitor-key", f"{folder}/monitor-key"),
                (" /store", f" {folder}/store"),
            ],
        )

    def here(self, text: str) -> str:
        return re.sub(r"/keys(?!\.json)", f"{self.stack.folder}/keys", super().here(text))

    def service(self, name: str, words: list[str] | None = None) -> subprocess.Popen[str]:
        service = self.services[name]
        environment = {key: str(value) for key, value in service.get("environment", {}).items() if value is not None}
        return self.start(words or [*service.get("entrypoint", []), *service["command"]], environment)

    def healthy(self, name: str) -> bool:
        kind, *test = self.services[name]["healthcheck"]["test"]
        if name in self.ports:  # there is no wget here, perhaps
            try:
                with urllib.request.urlopen(self.here(test[-1]), timeout=3) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False
        assert kind == "CMD-SHELL"
        return self.service(name, ["sh", "-c", *test]).wait(WAIT_S) == 0

    def terminate_stacks(self) -> None:
        """End `up` in order, so that it takes its children along."""
        for process in self.stack.started:
            if process.poll() is None and "oven_controller.cli.main" in " ".join(psutil.Process(process.pid).cmdline()):
                process.terminate()
                process.communicate(timeout=WAIT_S)


@pytest.fixture
def services(stack: Stack) -> Iterator[Services]:
    made = Services(stack, SERVICES, ["nats"])
    yield made
    made.terminate_stacks()


@pytest.fixture
def cluster(stack: Stack) -> Iterator[Services]:
    """The services of both files, as compose merges them: mapping by mapping, and commands as a whole."""
    merged = {
        name: SERVICES.get(name, {}) | service
        | {"environment": SERVICES.get(name, {}).get("environment", {}) | service.get("environment", {})}
        for name, service in (SERVICES | CLUSTER).items()
    }  # fmt: skip
    made = Services(stack, merged, ["nats", "nats-2", "nats-3"])
    yield made
    made.terminate_stacks()


def test_the_services_work_together(services: Services) -> None:
    stack: Stack = services.stack
    bootstrap = services.service("bootstrap")
    code, output = stack.end_of(bootstrap)
    assert code == 0, output
    folder: Path = stack.folder
    assert [path.name for path in sorted((folder / "learner-key").iterdir())] == ["keys.json", "learner.nk"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*key*/**/*.nk"))

    nats = services.service("nats")
    wait_for(lambda: services.healthy("nats"))
    up = services.service("stack")
    wait_for(lambda: services.healthy("stack"))

    code, output = stack.end_of(services.service("learner"))
    assert code == 0, output
    monitor = services.service("monitor")
    output = stack.read_until(monitor, "RunEnded")
    assert "RunStarted" in output and "Observation" in output and "RunEnded" in output, output

    up.terminate()  # `docker compose stop stack`
    code, output = stack.end_of(up)
    assert code == 0, output
    assert not services.healthy("stack")
    assert stack.command("replay", RUN)[0] == 0

    up = services.service("stack")  # and once more: it goes on with the run
    wait_for(lambda: services.healthy("stack"))
    up.terminate()
    assert stack.end_of(up)[0] == 0
    nats.terminate()
    stack.end_of(nats)


def test_the_run_continues_when_a_node_of_the_cluster_dies(cluster: Services) -> None:
    stack: Stack = cluster.stack
    code, output = stack.end_of(cluster.service("bootstrap"))
    assert code == 0, output
    for node in (1, 2, 3):  # a container has its own 127.0.0.1
        path = stack.folder / "keys" / f"node-{node}" / "nats.conf"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"http": f"127.0.0.1:{free_port()}"}))
    nodes = {name: cluster.service(name) for name in cluster.ports}
    up = cluster.service("stack")
    wait_for(lambda: cluster.healthy("stack"))
    (stack.folder / "limit").write_text("60")
    allow(stack.folder, 20)
    script = ["python", str(ROOT / "tests" / "support" / "paced_training.py"), str(stack.folder)]
    learner = cluster.service("learner", script)
    reached = stack.folder / "reached"
    wait_for(lambda: reached.exists() and reached.read_text() == "20")

    nodes["nats-2"].kill()
    nodes["nats-2"].wait()
    allow(stack.folder, 59)  # one step waits until the cluster has a leader again
    log = stack.run_folder(RUN).path / "log.jsonl"
    wait_for(lambda: log.read_text().count('"type": "Observation"') == 59)
    allow(stack.folder, 1000)
    code, output = stack.end_of(learner)
    assert code == 0, output
    assert up.poll() is None

    up.terminate()
    code, output = stack.end_of(up)
    assert code == 0, output
    assert stack.command("replay", RUN, "--verify")[0] == 0
    assert log.read_text().count('"type": "Observation"') == 60
    for name in ("nats", "nats-3"):
        nodes[name].terminate()
        stack.end_of(nodes[name])

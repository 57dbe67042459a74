"""docker/kubernetes.yaml's commands as processes on this machine: a pod is evicted, and its successor continues."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.conftest import ROOT, Stack, wait_for
from tests.support.containers import Containers
from tests.support.paced_training import allow

from oven_runs.server.embedded_server import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MANIFEST = (ROOT / "docker" / "kubernetes.yaml").read_text()
JOB: dict[str, Any] = list(yaml.safe_load_all(MANIFEST))[1]
POD: dict[str, Any] = JOB["spec"]["template"]["spec"]
CONTAINERS = {container["name"]: container for container in [*POD["initContainers"], *POD["containers"]]}


class Pod:
    def __init__(self, containers: Containers) -> None:
        self.containers = containers
        self.stack: Stack = containers.stack

    def start(self, name: str, words: list[str] | None = None) -> subprocess.Popen[str]:
        container = CONTAINERS[name]
        environment = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        return self.containers.start(words or [*container["command"], *container.get("args", [])], environment)

    def begin(self) -> None:
        """Start everything except the learner, in order."""
        code, output = self.stack.end_of(self.start("keys"))
        assert code == 0, output
        self.nats = self.start("nats")
        self.sidecar = self.start("stack")
        probe = CONTAINERS["stack"]["startupProbe"]["exec"]["command"]
        wait_for(lambda: self.start("stack", probe).wait() == 0, "the stack's startup probe succeeds")

    def end(self) -> None:
        """End the sidecars in the order in which a pod ends them."""
        for process in (self.sidecar, self.nats):
            process.terminate()
            code, output = self.stack.end_of(process)
            assert process is self.nats or code == 0, output


@pytest.fixture
def pod(stack: Stack) -> Iterator[Pod]:
    folder, home = stack.folder, stack.home.path
    for name in ("secret", "keys", "learner-key", "store"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)  # as an emptyDir
    replacements = [
        ("127.0.0.1:4222", f"127.0.0.1:{free_port()}"),
        ("127.0.0.1:8222", f"127.0.0.1:{free_port()}"),
        ("/train/train.py", f"{ROOT}/tests/support/paced_training.py {folder}"),
        ("/store/oven", str(home)),
        ("/oven/runs", f"{home}/runs"),
        *((f"/{name}", f"{folder}/{name}") for name in ("secret", "learner-key", "keys/", "store")),
        (" /keys ", f" {folder}/keys "),
    ]
    made = Pod(Containers(stack, replacements))
    yield made
    if made.sidecar.poll() is None:  # so that it takes its children along
        made.sidecar.terminate()
        made.sidecar.communicate(timeout=60)


def create_secret(pod: Pod, folder: Path) -> None:
    """Run the command at the top of the manifest, and copy the files that `kubectl create secret` takes."""
    line = re.search(r"oven-controller (creds server keys/ .*)", MANIFEST)
    assert line
    command = pod.containers.start(["oven-controller", *shlex.split(line[1].replace(" keys/", f" {folder}/made"))])
    code, output = pod.stack.end_of(command)
    assert code == 0, output
    for source in re.findall(r"--from-file=keys/(\S+)", MANIFEST):
        files = sorted((folder / "made" / source).iterdir()) if source == "creds" else [folder / "made" / source]
        for path in files:
            shutil.copyfile(path, folder / "secret" / path.name)
            (folder / "secret" / path.name).chmod(0o440)


def test_an_evicted_pod_is_continued_by_the_next(pod: Pod) -> None:
    folder = pod.stack.folder
    create_secret(pod, folder)
    (folder / "limit").write_text("40")
    allow(folder, 10)
    pod.begin()
    assert sorted(path.name for path in (folder / "learner-key").iterdir()) == ["keys.json", "learner.nk"]
    learner = pod.start("learner")
    wait_for(lambda: (folder / "reached").exists() and (folder / "reached").read_text() == "10", "step 10")
    learner.terminate()
    code, output = pod.stack.end_of(learner)
    assert code == 143, output
    assert (folder / "step").read_text() == "11", "the step after the signal is the last"
    pod.end()

    allow(folder, 1000)
    pod.begin()
    learner = pod.start("learner")
    code, output = pod.stack.end_of(learner)
    assert code == 0, output
    assert (folder / "step").read_text() == "40"
    pod.end()
    assert (pod.stack.run_folder("first").path / "log.jsonl").read_text().count('"type": "RunStarted"') == 2
    assert pod.stack.command("replay", "first", "--verify")[0] == 0

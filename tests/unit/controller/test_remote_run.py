"""A run on another machine: what is said of a wrong address, a wrong file, and the environment."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from oven_controller.cli.main import run
from oven_core.errors import ConfigError, RefusedError
from oven_core.security import person_file, tls
from oven_core.security.credentials import Credentials
from oven_core.security.person_file import PersonFile
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_finder import find_run, local_folder
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import ServerFolder

PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OVEN_URL", "OVEN_CREDS", "OVEN_RUN", "OVEN_RUN_DIR", "OVEN_TLS_CA", "OVEN_LEARNER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))


def written(folder: Path, **changed: Any) -> Path:
    """A person's file."""
    fields: dict[str, Any] = {
        "run": "far",
        "name": "ann",
        "role": "operator",
        "url": "nats://127.0.0.1:1",
        "seed": Credentials.new("ann").seed.decode(),
    }
    path = folder / "ann.oven"
    PersonFile.model_validate(fields | changed).save(path)
    return path


def ended(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        run(args)
    captured = capsys.readouterr()
    return int(end.value.code or 0), captured.out + captured.err


@pytest.mark.parametrize(
    "address", [f"nats://ann:{PASSWORD}@bus.example:4222", f"tls://a:1,tls://{PASSWORD}@b:2", f"{PASSWORD}@b:2"]
)
@pytest.mark.parametrize("way", ["option", "environment", "creds add", "up"])
def test_a_password_in_an_address_is_refused_and_never_shown(
    address: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args: tuple[str, ...] = ("status", "--run", "far")
    if way == "option":
        args += ("--nats", address)
    elif way == "environment":
        monkeypatch.setenv("OVEN_URL", address)
    elif way == "up":
        args = ("up", "--dry-run", "--nats", address if "://" in address else f"nats://{address}")
    else:
        made = ServerFolder(tmp_path / "bus", "far")
        made.add_user("admin", "admin")
        made.write_conf(4222)
        args = ("creds", "add", "ann", "--operator", "--server", str(made.folder), "--nats", address)
    code, output = ended(capsys, *args)
    assert (code, PASSWORD in output, "--creds" in output) == (2, False, True), output
    assert PASSWORD not in tls.redact(address)


def test_an_unreachable_server_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:  # bound and not listening: refused at once, and no one else takes the port
        listener.bind(("127.0.0.1", 0))
        file = written(tmp_path, url=f"nats://127.0.0.1:{listener.getsockname()[1]}")
        for command in (("hold",),):
            code, output = ended(capsys, *command, "--creds", str(file))
            assert (code, "no NATS server answers at" in output, "Traceback" in output) == (3, True, False), output
        code, output = ended(capsys, "status", "--creds", str(file), "--json")
        assert (code, json.loads(output)["status"], "no NATS server" in json.loads(output)["log_error"]) == (
            3,
            "unreachable",
            True,
        )


def test_the_key_of_another_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path)
    assert find_run("far", Endpoint(creds=file)).run == find_run(None, Endpoint(creds=file)).run == "far"
    with pytest.raises(ConfigError, match=r"\(from --creds\) is the key of 'ann' for run 'far', not for 'near'"):
        find_run("near", Endpoint(creds=file))
    monkeypatch.setenv("OVEN_CREDS", str(file))
    with pytest.raises(ConfigError, match=r"\(from OVEN_URL and OVEN_CREDS\)"):
        find_run("near", Endpoint())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a credential file"),
        ("{}", "is not a credential file"),
        ("nothing", "has no nkey seed"),
        ('{"run": "far", "name": "a b", "role": "operator", "url": "", "seed": "x"}', "is not a usable name"),
        ('{"run": "far", "name": "ann", "role": "operator", "url": "", "seed": "SUnot"}', "is not an nkey seed"),
        ('{"run": "far", "name": "ann", "role": "admin", "url": "", "seed": "x"}', "role"),
    ],
)
def test_files_that_are_not_credentials_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ann.oven"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=words) as refused:
        person_file.load(path)
    assert "SUnot" not in str(refused.value), "a seed is never shown"


def test_a_credential_file_must_be_private_and_have_an_address(tmp_path: Path) -> None:
    file = written(tmp_path, url="")
    with pytest.raises(ConfigError, match="has no address: pass it with --nats URL"):
        find_run(None, Endpoint(creds=file))
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        person_file.load(file)


async def test_a_read_only_key_cannot_command_and_no_persons_key_is_the_stacks(tmp_path: Path) -> None:
    access = RemoteRun.from_endpoint(Endpoint(creds=written(tmp_path, role="monitor")))
    with pytest.raises(RefusedError, match=r"read-only.*creds add NAME --operator --run far"):
        async with access.connect("operator"):
            pass
    with pytest.raises(ConfigError, match="only a process on the machine of run 'far'"):
        async with access.connect("admin"):
            pass
    with pytest.raises(ConfigError, match="replaying needs the folder of run 'far'"):
        local_folder(access, "replaying")


def test_a_process_of_the_stack_reads_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Home(tmp_path / "home").create("near", "toy")
    for name, value in {"OVEN_URL": "nats://127.0.0.1:1", "OVEN_RUN": "near", "OVEN_RUN_DIR": str(folder.path)}.items():
        monkeypatch.setenv(name, value)
    run = find_run("near", Endpoint())
    assert isinstance(run, LocalRun) and local_folder(run, "it").path == folder.path
    assert isinstance(find_run("near", Endpoint("nats://127.0.0.1:1")), RemoteRun), "an option says otherwise"


@pytest.mark.parametrize(
    "address", ["http://x:1", "nats://", "nats://h:x", "nats://h:0", "nats://[::1", "::", "/etc/x"]
)
def test_an_invalid_server_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a server's address"):
        tls.checked_addresses(address)
    assert tls.checked_addresses("a:1, tls://b:2") == ["a:1", "tls://b:2"]

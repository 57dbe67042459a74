"""`creds server`: keys and a configuration for a nats-server of one's own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_core.errors import ConfigError
from oven_core.protocol.permissions import permissions
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer, load_keys
from oven_runs.server.embedded_server import ServerFolder, find_binary, free_port, is_free


def make(folder: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as end:
        run(["creds", "server", str(folder), "--run", "r", *more])
    return int(end.value.code or 0)


def test_a_key_for_each_and_a_configuration_that_the_server_takes(tmp_path: Path) -> None:
    more = ["--agent", "lr", "--member", "judge", "--listen", "0.0.0.0:4333", "--http", "127.0.0.1:8333"]
    assert make(tmp_path / "bus", *more) == 0
    keys = {path.stem: path for path in (tmp_path / "bus" / "creds").glob("*.nk")}
    assert set(keys) == {"admin", "learner", "mesh", "history", "kg", "operator", "monitor", "lr", "judge"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in keys.values())
    conf = json.loads((tmp_path / "bus" / "nats.conf").read_text())
    assert (conf["listen"], conf["http"]) == ("0.0.0.0:4333", "127.0.0.1:8333")
    users = {user["nkey"]: user["permissions"] for user in conf["authorization"]["users"]}
    assert users[Credentials.load(keys["lr"]).public] == permissions("agent", "lr", "r")
    assert users[Credentials.load(keys["judge"]).public] == permissions("member", "judge", "r")
    subprocess.run([find_binary(), "-t", "-c", str(tmp_path / "bus" / "nats.conf")], check=True, capture_output=True)


def test_keys_json_has_the_signers_public_keys(tmp_path: Path) -> None:
    assert make(tmp_path, "--agent", "lr") == 0
    creds = tmp_path / "creds"
    signers = {name: Signer(Credentials.load(creds / f"{name}.nk")).public for name in ("learner", "mesh", "operator")}
    assert load_keys(creds / "keys.json") == signers


def test_a_second_call_keeps_the_keys(tmp_path: Path) -> None:
    assert make(tmp_path, "--agent", "lr") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "creds").iterdir()}
    assert make(tmp_path, "--agent", "lr", "--agent", "scout", "--store", str(tmp_path / "elsewhere")) == 0
    after = {path.name: path.read_bytes() for path in (tmp_path / "creds").iterdir()}
    assert before.items() < after.items() and "scout.nk" in after
    assert json.loads((tmp_path / "nats.conf").read_text())["jetstream"]["store_dir"] == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--listen", "4222"], "--listen 4222 is not HOST:PORT"),
        (["--listen", "localhost:99999"], "--listen localhost:99999 is not HOST:PORT"),
        (["--agent", "a.b"], "agent 'a.b' is not a usable name"),
        (["--agent", "mesh"], "'mesh' is already a mesh of this run"),
        (["--tls", "--listen", "0.0.0.0:4222"], "add --host NAME"),
        (["--host", "bus.example"], "add --tls, or --tls-cert and --tls-key"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key must be used together"),
        (["--tls-cert", "a.pem", "--tls-key", "a.key"], "there is no file a.pem"),
        (["--tls", "--tls-cert", "a.pem"], "use only one of them"),
    ],
)
def test_bad_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert make(tmp_path, *more) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert make(tmp_path / "file" / "bus") == 2
    assert "cannot write to" in capsys.readouterr().err


def test_a_reachable_server_without_tls_causes_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(tmp_path / "a", "--agent", "lr", "--listen", "0.0.0.0:4222") == 0
    assert "has no TLS" in capsys.readouterr().err
    assert make(tmp_path / "b", "--agent", "lr", "--listen", "127.0.0.1:4222") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_server_without_users_must_be_local(tmp_path: Path, host: str) -> None:
    folder = ServerFolder(tmp_path, "r")
    with pytest.raises(ConfigError, match=r"without users .* creds server"):
        folder.write_conf(4222, host)
    assert not folder.conf.exists()
    folder.write_conf(4222, "127.0.0.1")
    folder.add_user("admin", "admin")
    folder.write_conf(4222, host)


def test_free_ports_are_distinct_and_below_the_ephemeral_range() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(is_free(port) and port < 32_768 for port in ports)

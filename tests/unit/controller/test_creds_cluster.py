"""`creds cluster`: from one server's configuration to those of three that know each other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from oven_controller.cli.main import run
from oven_runs.server.embedded_server import find_binary

NODES = ["--node", "127.0.0.1:4222", "--node", "127.0.0.2:4222", "--node", "127.0.0.3:4222"]


def creds(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        run(["creds", *args])
    return int(end.value.code or 0)


def test_each_node_has_the_users_a_store_and_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path /= "Öfen"
    assert creds("server", str(tmp_path), "--run", "r", "--agent", "lr") == 0
    assert creds("cluster", str(tmp_path), *NODES) == 0
    base = json.loads((tmp_path / "nats.conf").read_text())
    seen = set()
    for number in (1, 2, 3):
        path = tmp_path / f"node-{number}" / "nats.conf"
        assert path.stat().st_mode & 0o777 == 0o600
        conf = json.loads(path.read_text())
        seen.add((conf["server_name"], conf["listen"], conf["jetstream"]["store_dir"]))
        assert conf["authorization"] == base["authorization"] and conf["cluster"]["name"] == base["server_name"]
        assert len(conf["cluster"]["routes"]) == 2 and conf["cluster"]["listen"] == f"127.0.0.{number}:6222"
        assert not any(f"@127.0.0.{number}:" in route for route in conf["cluster"]["routes"])
        subprocess.run([find_binary(), "-t", "-c", str(path)], check=True, capture_output=True)
    assert len(seen) == 3
    output = capsys.readouterr().out
    assert "--nats nats://127.0.0.1:4222,nats://127.0.0.2:4222,nats://127.0.0.3:4222" in output
    assert "stream_replicas=3" in output


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (NODES[:4], "a cluster cannot have 2 servers"),
        ([*NODES[:4], "--node", "c"], "--node c is not HOST:PORT"),
        (NODES, "there is no"),
    ],
)
def test_bad_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: list[str], message: str) -> None:
    assert creds("cluster", str(tmp_path), *nodes) == 2
    assert message in capsys.readouterr().err


def test_a_second_call_keeps_the_nodes_password_and_the_configured_store(tmp_path: Path) -> None:
    server = ["server", str(tmp_path), "--run", "r", "--agent", "lr", "--store", str(tmp_path / "disk")]
    assert creds(*server) == 0 and creds("cluster", str(tmp_path), *NODES) == 0
    first = json.loads((tmp_path / "node-2" / "nats.conf").read_text())
    assert first["jetstream"]["store_dir"] == str(tmp_path / "disk" / "node-2")
    assert creds(*server) == 0 and creds("cluster", str(tmp_path), *NODES) == 0
    assert json.loads((tmp_path / "node-2" / "nats.conf").read_text()) == first

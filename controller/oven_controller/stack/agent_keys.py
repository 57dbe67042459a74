"""Add and revoke keys of agents and committee members, also while the stack is up."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import get_args

import psutil

from oven_core import plugins
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, ProcessError, RefusedError, UnknownNameError, reason
from oven_core.protocol import names
from oven_core.protocol.permissions import Role
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded import ServerFolder

RELOAD_S = 5.0
"""Timeout in seconds for the server to reload its users, or to restart."""
SERVICES = ("up", "nats-server", "script")
POOL = re.compile(r"(agents|mesh)-\d+")
"""Names of processes with several agents, and of replicas of the mesh."""
TEMPORARY_ROLES = ("agent", "member")
"""Roles with temporary keys. In every other role, the stack owns the key with the role's name, and the other keys
belong to people."""


def admit(
    folder: RunFolder, name: str, *, shipped: bool = False, fresh: bool = False, completions: bool | None = None
) -> None:
    """Create a key for the agent `name`, and make a running server accept it.

    `shipped`: the key is for the installed agent with that name. `fresh`: refuse a name that is in use now.
    `completions`: whether it may read sampled completions; None: as before, initially not. Raises ConfigError for a
    name that is taken, ProcessError if the server does not accept the key.
    """
    names.checked("agent", name)
    info = folder.info()
    shared = [user.name for user in folder.server.users() if name in user.agents]
    pids = [info.children.get(process, 0) for process in (f"agent-{name}", *shared)]
    if fresh and folder.is_locked() and any(map(psutil.pid_exists, filter(None, pids))):
        raise ConfigError(f"an agent named {name!r} runs in {folder.run!r} already; choose another with --name")
    if owner := reserved(folder.server, name, shipped):
        raise ConfigError(f"{name!r} is the name of {owner}; choose another for your own agent")
    if _made_here(folder, "agent", name):
        apply_users(folder, Credentials.load(folder.add_user("agent", name, completions=completions)))
    elif completions is not None:
        raise ConfigError(f"the administrator of {info.url} decides what its keys may read; omit --completions")


def admit_member(folder: RunFolder, name: str) -> None:
    """Make a running server accept the key of a committee member that joins. Raises ConfigError for a name that is
    taken, ProcessError if the server does not accept the key."""
    names.checked("member", name)
    owner = reserved(folder.server, name)
    if owner or any(user.name == name and user.role != "member" for user in folder.server.users()):
        raise ConfigError(f"{name!r} is the name of {owner or 'another key'}; choose another for the member")
    path = folder.credentials("member", name)
    if _made_here(folder, "member", name) and path is not None:
        apply_users(folder, Credentials.load(path))


def _made_here(folder: RunFolder, role: Role, name: str) -> bool:
    """Whether keys are made on this machine. Raises ConfigError if they are not and this key is missing."""
    info = folder.info()
    path = folder.credentials(role, name)
    if not info.embedded and path is not None and not path.is_file():
        raise ConfigError(f"there is no key {path}; the server's administrator makes keys for {info.url}")
    return info.embedded


def reserved(server: ServerFolder, name: str, shipped: bool = False) -> str:
    """Return the owner of a name that no other agent or person may use; empty if the name is free."""
    for user in server.users():
        if name in user.agents:
            return f"an agent of this run, which uses the key {user.name!r}"
    if name in get_args(Role) or name in SERVICES:
        return "a part of the stack"
    if POOL.fullmatch(name):
        return "a process of several agents, or of a mesh replica"
    if name in plugins.find_plugins("agents") and not shipped:
        return f"an installed agent (`oven-controller agent run {name}` runs that one)"
    return ""


def revoke(folder: RunFolder, name: str) -> None:
    """Revoke the key of `name`: close its connections and remove its file.

    Raises UnknownNameError or ConfigError for a name that cannot be revoked here, ProcessError if the server still
    accepts the key.
    """
    info = folder.info()
    if not info.embedded:
        raise ConfigError(
            f"the administrator of {info.url} makes its keys: run `creds revoke {name} --server FOLDER` on that machine"
        )
    key = _key_to_revoke(folder.server, name)
    folder.remove_user(name)
    apply_users(folder, key, accepted=False)


def revoke_in_folder(server: ServerFolder, name: str) -> None:
    """Revoke a key in the folder of the user's own server, which still has to reload it."""
    _key_to_revoke(server, name)
    server.remove_user(name)
    server.rewrite_users()


def server_folder(path: Path) -> ServerFolder:
    """Open a folder that `creds server` made. Raises ConfigError."""
    try:
        return ServerFolder.existing(path.absolute())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{path} is not a folder that `oven-controller creds server` made: {reason(error)}"
        raise ConfigError(problem) from error


def _key_to_revoke(server: ServerFolder, name: str) -> Credentials | None:
    """Return the key, to test that the server refuses it; None if its file is already gone. Raises ConfigError."""
    roles = {user.name: user.role for user in server.users()}
    if name not in roles:
        for user in server.users():
            if name in user.agents:
                raise ConfigError(
                    f"{name!r} shares the key {user.name!r} with {', '.join(user.agents)}: revoke that key, or `mute` "
                    "the agent; with --set agents_per_process=1 each agent has its own key"
                )
        raise UnknownNameError("key", name, (known for known, role in roles.items() if _is_temporary(known, role)))
    if not _is_temporary(name, roles[name]):
        raise ConfigError(f"{name!r} is the stack's own key; only keys of agents, members and persons can be revoked")
    path = server.creds / f"{name}.nk"
    return Credentials.load(path) if path.exists() else None


def _is_temporary(name: str, role: Role) -> bool:
    return role in TEMPORARY_ROLES or name != role


def apply_users(folder: RunFolder, key: Credentials | None, *, accepted: bool = True) -> None:
    """Make the stack's server, if it is up, reload its users. Wait until it accepts the key, or refuses it if not
    `accepted`. Raises ProcessError after RELOAD_S."""
    if folder.is_locked() and folder.info().port is not None:
        folder.server.rewrite_users()
        if key is not None:
            asyncio.run(_reload(folder, key, accepted))


async def _reload(folder: RunFolder, key: Credentials, accepted: bool) -> None:
    # A server that is being restarted reads its users then.
    deadline = asyncio.get_running_loop().time() + RELOAD_S
    signalled = 0
    while True:
        info = folder.info()
        guard = info.children.get("nats-server", 0)
        if guard != signalled and _is_server(guard):
            os.kill(guard, signal.SIGHUP)
            signalled = guard
        try:
            async with Bus.connect(info.url, key):
                connects = True
        except RefusedError:
            connects = False
        except BusError:
            connects = not accepted  # no answer: not done yet
        if connects == accepted:
            return
        if asyncio.get_running_loop().time() > deadline:
            problem = "does not accept the key" if accepted else "still accepts the key"
            raise ProcessError(
                f"the server of run {folder.run!r} {problem} of {key.name!r} after {RELOAD_S:g} s; "
                f"`oven-controller down {folder.run}` and `up --resume` make it reload its users"
            )
        await asyncio.sleep(0.05)


def _is_server(pid: int) -> bool:
    """Whether the process id in run.json still belongs to the server."""
    try:
        return pid > 0 and any("nats-server" in argument for argument in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False

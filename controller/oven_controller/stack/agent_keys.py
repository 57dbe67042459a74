"""Add and revoke keys for agents and committee members, even while the stack is up."""

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
from oven_runs.server.embedded_server import ServerFolder

RELOAD_TIMEOUT_S = 5.0
"""Timeout in seconds for the server to reload its users, or to restart."""
PROCESS_NAMES = ("up", "nats-server", "script")
"""Names of processes that are not roles. No agent, member or person may use them."""
SHARED_PROCESS = re.compile(r"(agents|mesh)-\d+")
"""Names of processes that run several agents, and of mesh replicas."""
REVOCABLE_ROLES = ("agent", "member")
"""Roles whose keys can all be revoked. In every other role, the stack owns the key with the role's name, and people own
the other keys."""


def admit(
    folder: RunFolder, name: str, *, installed: bool = False, is_new: bool = False, completions: bool | None = None
) -> None:
    """Create a key for the agent `name`, and make a running server accept it.

    Set `installed` for an installed agent, because no other agent may use its name. With `is_new`, the name of a
    running agent is rejected. `completions` says whether the agent may read sampled completions. None keeps the
    permission, which a new key lacks. Raises ConfigError for a taken name, and ProcessError for a rejected key.
    """
    names.validate("agent", name)
    info = folder.info()
    shared_keys = [user.name for user in folder.server.users() if name in user.agents]
    pids = [info.children.get(process, 0) for process in (f"agent-{name}", *shared_keys)]
    if is_new and folder.is_locked() and any(pid and psutil.pid_exists(pid) for pid in pids):
        raise ConfigError(
            f"an agent named {name!r} is already running in {folder.run!r}; choose another name with --name"
        )
    if owner := name_owner(folder.server, name, installed):
        raise ConfigError(f"{name!r} is the name of {owner}; choose another name for your own agent")
    if _has_local_keys(folder, "agent", name):
        reload_users(folder, Credentials.load(folder.add_user("agent", name, completions=completions)))
    elif completions is not None:
        raise ConfigError(f"the administrator of {info.url} decides what its keys may read; omit --completions")


def admit_member(folder: RunFolder, name: str) -> None:
    """Make a running server accept the key of a joining committee member. Raises ConfigError for a name that is taken,
    and ProcessError if the server rejects the key."""
    names.validate("member", name)
    owner = name_owner(folder.server, name)
    if owner or any(user.name == name and user.role != "member" for user in folder.server.users()):
        raise ConfigError(f"{name!r} is the name of {owner or 'another key'}; choose another name for the member")
    path = folder.credentials("member", name)
    if _has_local_keys(folder, "member", name) and path is not None:
        reload_users(folder, Credentials.load(path))


def _has_local_keys(folder: RunFolder, role: Role, name: str) -> bool:
    """Return whether the run's keys are made on this machine. Raises ConfigError if they are made elsewhere and this
    key is missing here."""
    info = folder.info()
    path = folder.credentials(role, name)
    if not info.embedded and path is not None and not path.is_file():
        raise ConfigError(f"there is no key file {path}; ask the administrator of {info.url} for the key")
    return info.embedded


def name_owner(server: ServerFolder, name: str, installed: bool = False) -> str:
    """Describe what already uses a name. Return an empty string if the name is free."""
    for user in server.users():
        if name in user.agents:
            return f"an agent of this run, which uses the key {user.name!r}"
    if name in get_args(Role) or name in PROCESS_NAMES:
        return "a part of the stack"
    if SHARED_PROCESS.fullmatch(name):
        return "a process with several agents, or a mesh replica"
    if name in plugins.find_plugins("agents") and not installed:
        return f"an installed agent (run it with `oven-controller agent run {name}`)"
    return ""


def revoke(folder: RunFolder, name: str) -> None:
    """Revoke the key of `name`: close its connections and remove its file. Raises UnknownNameError or ConfigError for a
    name that cannot be revoked here, and ProcessError if the server still accepts the key."""
    info = folder.info()
    if not info.embedded:
        raise ConfigError(
            f"the keys for {info.url} are on its machine; run `creds revoke {name} --server FOLDER` there"
        )
    key = _find_key_to_revoke(folder.server, name)
    folder.remove_user(name)
    reload_users(folder, key, accepted=False)


def revoke_in_folder(server: ServerFolder, name: str) -> None:
    """Revoke a key in the folder of the user's own server. The server must then reload its configuration."""
    _find_key_to_revoke(server, name)
    server.remove_user(name)
    server.rewrite_users()


def open_server_folder(path: Path) -> ServerFolder:
    """Open a folder that `creds server` has written. Raises ConfigError for any other folder."""
    try:
        return ServerFolder.existing(path.absolute())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"{path} is not a folder written by `oven-controller creds server`: {reason(error)}"
        raise ConfigError(problem) from error


def _find_key_to_revoke(server: ServerFolder, name: str) -> Credentials | None:
    """Return the key, so that the caller can test its rejection, or None if its file is gone. Raises ConfigError."""
    roles = {user.name: user.role for user in server.users()}
    if name not in roles:
        for user in server.users():
            if name in user.agents:
                raise ConfigError(
                    f"{name!r} shares the key {user.name!r} with {', '.join(user.agents)}; revoke that key, or `mute` "
                    "the agent; with --set agents_per_process=1 each agent has its own key"
                )
        raise UnknownNameError("key", name, (key for key, role in roles.items() if _is_revocable(key, role)))
    if not _is_revocable(name, roles[name]):
        raise ConfigError(f"{name!r} is the stack's own key; only keys of agents, members and people can be revoked")
    path = server.creds / f"{name}.nk"
    return Credentials.load(path) if path.exists() else None


def _is_revocable(name: str, role: Role) -> bool:
    return role in REVOCABLE_ROLES or name != role


def reload_users(folder: RunFolder, key: Credentials | None, *, accepted: bool = True) -> None:
    """Make the stack's server reload its users if it is up, and wait until it accepts the key, or rejects the key if
    `accepted` is False. Raises ProcessError after RELOAD_TIMEOUT_S."""
    if folder.is_locked() and folder.info().port is not None:
        folder.server.rewrite_users()
        if key is not None:
            asyncio.run(_reload(folder, key, accepted))


async def _reload(folder: RunFolder, key: Credentials, accepted: bool) -> None:
    # A server that is restarting reads its users anyway, so a missing process is not an error.
    deadline = asyncio.get_running_loop().time() + RELOAD_TIMEOUT_S
    signalled_pid = 0
    while True:
        info = folder.info()
        server_pid = info.children.get("nats-server", 0)
        if server_pid != signalled_pid and _is_server(server_pid):
            os.kill(server_pid, signal.SIGHUP)
            signalled_pid = server_pid
        try:
            async with Bus.connect(info.url, key):
                is_accepted: bool | None = True
        except RefusedError:
            is_accepted = False
        except BusError:
            is_accepted = None  # unknown, because the server does not answer yet
        if is_accepted is accepted:
            return
        if asyncio.get_running_loop().time() > deadline:
            problem = "does not accept the key" if accepted else "still accepts the key"
            raise ProcessError(
                f"the server of run {folder.run!r} {problem} of {key.name!r} after {RELOAD_TIMEOUT_S:g} s; "
                f"`oven-controller down {folder.run}` and `up --resume` make it reload its users"
            )
        await asyncio.sleep(0.05)


def _is_server(pid: int) -> bool:
    """Return whether the process id in run.json still belongs to the server."""
    try:
        return pid > 0 and any("nats-server" in argument for argument in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False

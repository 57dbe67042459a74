"""Letting an agent in while the stack is up: a key for it, and a server that has read it."""

from __future__ import annotations

import asyncio
import os
import signal

from oven_controller import names
from oven_controller.bus import Bus
from oven_controller.credentials import Credentials
from oven_controller.errors import ConfigError, ProcessError, RefusedError
from oven_controller.home import RunFolder

ADMITTED_S = 3.0


def admit(folder: RunFolder, name: str, *, fresh: bool = False) -> None:
    """A key for the agent `name`, known to the server if it runs. `fresh`: refuse a name that is in use now.

    Raises ConfigError for a name that is taken, ProcessError when the server does not take the key.
    """
    names.checked("agent", name)
    info = folder.info()
    live = folder.locked()
    if fresh and live and _alive(info.children.get(f"agent-{name}", 0)):
        raise ConfigError(f"an agent named {name!r} runs in {folder.run!r} already; choose another with --name")
    if not info.embedded:
        path = folder.credentials("agent", name)
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no key {path}; the server's administrator makes keys for {info.url}")
        return
    folder.add_user("agent", name)
    if not live or info.port is None:
        return
    folder.server.write_conf(info.port)
    try:
        os.kill(info.children["nats-server"], signal.SIGHUP)
    except (KeyError, ProcessLookupError, PermissionError) as error:
        raise ProcessError(f"the server of run {folder.run!r} cannot be told of {name!r}: {error}") from error
    asyncio.run(_accepted(folder, info.url, name))


async def _accepted(folder: RunFolder, url: str, name: str) -> None:
    """A reload takes a moment, and until then the server refuses the key."""
    credentials = Credentials.load(folder.server.creds / f"{name}.nk")
    deadline = asyncio.get_running_loop().time() + ADMITTED_S
    while True:
        try:
            async with Bus.connect(url, credentials):
                return
        except RefusedError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise ProcessError(f"the server did not read the key of {name!r} within {ADMITTED_S:g} s") from error
            await asyncio.sleep(0.05)


def _alive(pid: int) -> bool:
    import psutil

    return pid > 0 and psutil.pid_exists(pid)

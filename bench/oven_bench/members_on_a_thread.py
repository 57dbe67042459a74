"""A server and remote members of a committee on it, beside the thread that trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self

from nats.aio.msg import Msg

from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.security.credentials import Credentials
from oven_learner.rewards.remote_members import RemoteMembers
from oven_runs.server.embedded import EmbeddedServer, ServerFolder


class MembersOnAThread:
    """A context: the server and the members run on an event loop beside the caller's thread."""

    def __init__(self, folder: Path, members: Sequence[str]) -> None:
        self.names = tuple(members)
        self._files = ServerFolder(folder / "nats", "bench")
        self._files.add_user("learner", "learner")
        for name in self.names:
            self._files.add_user("member", name)
        self._log = folder / "nats-server.log"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: EmbeddedServer | None = None
        self._buses: list[Bus] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def remote(self, deadline_s: float) -> RemoteMembers:
        """What a committee asks them by."""
        assert self._server is not None
        return RemoteMembers(self.names, self._server.url, self._key("learner"), deadline_s=deadline_s)

    def answering(self, bus: Bus, member: str) -> Callable[[Msg], Awaitable[None]]:
        """What this member does with a request; its reply goes over this bus."""
        raise NotImplementedError

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _key(self, name: str) -> Credentials:
        return Credentials.load(self._files.creds / f"{name}.nk")

    async def _open(self) -> None:
        self._server = await EmbeddedServer.start(self._files, self._log)
        for name in self.names:
            bus = await Bus.open(self._server.url, self._key(name))
            self._buses.append(bus)
            await bus.subscribe(names.reward(name), self.answering(bus, name))
            await bus.flush()

    async def _close(self) -> None:
        for bus in self._buses:
            await bus.close()
        if self._server is not None:
            await self._server.stop()

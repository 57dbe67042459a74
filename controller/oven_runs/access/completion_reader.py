"""Reader of a run's sampled completions: the stored ones, and new ones as they come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import stored_batch
from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.protocol.completion_messages import CompletionsBatch, CompletionsRequest, StoredGroup
from oven_core.protocol.names import Subjects
from oven_core.security.credentials import Credentials
from oven_runs.access.log_sources import connected
from oven_runs.access.run_access import RunAccess, warn
from oven_runs.access.run_finder import local_folder
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded import EmbeddedServer

ANSWER_S = 5.0
RETRY_S = 0.5
POLL_S = 1.0
"""Seconds between two checks whether the stack is still up, and for completions whose message was missed."""
NOT_STORED = (
    "run {run!r} stores no completions: they are off by default for your own script; start or resume it with "
    "`--set completions.every=10`"
)


async def newest(access: RunAccess, most: int) -> list[StoredGroup]:
    """Return the newest groups of a run, up or down, oldest first. Raises BusError; ConfigError if none are stored."""
    if not access.up():
        return await _from_store(local_folder(access, "reading its completions"), most)
    async with access.connected("monitor") as bus:
        return [group async for batch in _batches(bus, access.run, 0, most) for group in batch]


async def followed(
    access: RunAccess, most: int, tell: Callable[[str], object] = warn
) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest groups, and then new ones until the stack is down.

    Waits for a server or mesh that restarts, and says so through `tell`. Raises RefusedError; ConfigError if none are
    stored.
    """
    last_seq, wake, lost = 0, asyncio.Event(), False
    while access.up():
        try:
            async with access.connected("monitor") as bus:
                await _listen(bus, access.run, wake)
                while access.up():
                    wake.clear()
                    async for groups in _batches(bus, access.run, last_seq, most):
                        yield groups
                        last_seq = groups[-1].seq
                    lost = False
                    if not bus.connected:
                        break
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(POLL_S):
                            await wake.wait()
        except (RefusedError, ConfigError):
            raise
        except BusError as error:
            if access.is_over(False):
                return
            if not lost:
                tell(f"{error}; retrying until it answers")
                lost = True
            await asyncio.sleep(RETRY_S)


async def _from_store(folder: RunFolder, most: int) -> list[StoredGroup]:
    """Read a run that is down, by starting its server. Raises ConfigError, StoreInUseError."""
    if not folder.info().embedded:
        async with connected(folder, "admin") as bus:
            return await _newest_stored(bus, folder.run, most)
    if not folder.stored():
        raise ConfigError(f"run {folder.run!r} has no store any more, and completions are nowhere else")
    with folder.hold(reading=True):
        admin = Credentials.load(folder.add_user("admin", "admin"))
        server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
        try:
            async with Bus.connect(server.url, admin) as bus:
                return await _newest_stored(bus, folder.run, most)
        finally:
            await server.stop()


async def _listen(bus: Bus, run: str, wake: asyncio.Event) -> None:
    async def hear(_message: object) -> None:
        wake.set()

    await bus.subscribe(Subjects(run).completions, hear)
    await bus.flush()


async def _batches(bus: Bus, run: str, after: int, most: int) -> AsyncGenerator[list[StoredGroup]]:
    """Yield the newest `most` groups after a sequence. Raises BusError without a mesh, ConfigError."""
    while most > 0:
        request = CompletionsRequest(after=after, limit=min(most, 256))
        reply = await bus.request(Subjects(run).stored_completions, request.wire(), ANSWER_S)
        try:
            batch = CompletionsBatch.model_validate_json(reply)
        except ValidationError:
            raise BusError("the reply to a request for completions is malformed") from None
        if not batch.has_stream:
            raise ConfigError(NOT_STORED.format(run=run))
        if not batch.groups:
            return
        yield list(batch.groups)
        after, most = batch.groups[-1].seq, most - len(batch.groups)


async def _newest_stored(bus: Bus, run: str, most: int) -> list[StoredGroup]:
    groups: list[StoredGroup] = []
    while len(groups) < most:
        batch = await stored_batch(bus, run, groups[-1].seq if groups else 0, most - len(groups))
        if not batch.has_stream:
            raise ConfigError(NOT_STORED.format(run=run))
        if not batch.groups:
            break
        groups += batch.groups
    return groups

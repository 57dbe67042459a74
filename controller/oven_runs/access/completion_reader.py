"""Reader of a run's sampled completions: those that are kept, and new ones as they come."""

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
AGAIN_S = 0.5
LOOK_S = 1.0
"""Between two looks whether the stack is still up, and for what was not heard of."""
NONE_KEPT = (
    "run {run!r} keeps no completions: they are off for your own script; start it with "
    "`--set completions.every=10`, or resume it so"
)


async def newest(access: RunAccess, most: int) -> list[StoredGroup]:
    """The newest groups of a run, up or down, oldest first. Raises BusError; ConfigError where none are kept."""
    if not access.up():
        return await _of_store(local_folder(access, "reading its completions"), most)
    async with access.connected("monitor") as bus:
        return [group async for batch in _batches(bus, access.run, 0, most) for group in batch]


async def followed(
    access: RunAccess, most: int, tell: Callable[[str], object] = warn
) -> AsyncGenerator[list[StoredGroup]]:
    """The newest groups, and then those that come, until the stack is down. A server or a mesh that is being started
    again is waited for, and `tell` hears of it. Raises RefusedError; ConfigError where none are kept."""
    last, heard, away = 0, asyncio.Event(), False
    while access.up():
        try:
            async with access.connected("monitor") as bus:
                await _listen(bus, access.run, heard)
                while access.up():
                    heard.clear()
                    async for groups in _batches(bus, access.run, last, most):
                        yield groups
                        last = groups[-1].seq
                    away = False
                    if not bus.connected:
                        break
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await heard.wait()
        except (RefusedError, ConfigError):
            raise
        except BusError as error:
            if access.over(False):
                return
            if not away:
                tell(f"{error}; it is tried again until it answers")
                away = True
            await asyncio.sleep(AGAIN_S)


async def _of_store(folder: RunFolder, most: int) -> list[StoredGroup]:
    """Of a run that is down: its server is started for it. Raises ConfigError where none are kept, or its store is
    gone, StoreInUseError where the run is up after all."""
    if not folder.info().embedded:
        async with connected(folder, "admin") as bus:
            return await _all(bus, folder.run, most)
    if not folder.stored():
        raise ConfigError(f"run {folder.run!r} has no store any more, and completions are nowhere else")
    with folder.hold(reading=True):
        admin = Credentials.load(folder.add_user("admin", "admin"))
        server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
        try:
            async with Bus.connect(server.url, admin) as bus:
                return await _all(bus, folder.run, most)
        finally:
            await server.stop()


async def _listen(bus: Bus, run: str, heard: asyncio.Event) -> None:
    async def wake(_message: object) -> None:
        heard.set()

    await bus.subscribe(Subjects(run).completions, wake)
    await bus.flush()


async def _batches(bus: Bus, run: str, after: int, most: int) -> AsyncGenerator[list[StoredGroup]]:
    """The newest `most` groups behind a sequence, asked from the mesh. Raises BusError where none answers, ConfigError
    where none are kept."""
    while most > 0:
        request = CompletionsRequest(after=after, limit=min(most, 256))
        reply = await bus.request(Subjects(run).stored_completions, request.wire(), ANSWER_S)
        try:
            batch = CompletionsBatch.model_validate_json(reply)
        except ValidationError:
            raise BusError("the answer to a request for completions is none") from None
        if not batch.kept:
            raise ConfigError(NONE_KEPT.format(run=run))
        if not batch.groups:
            return
        yield list(batch.groups)
        after, most = batch.groups[-1].seq, most - len(batch.groups)


async def _all(bus: Bus, run: str, most: int) -> list[StoredGroup]:
    found: list[StoredGroup] = []
    while len(found) < most:
        batch = await stored_batch(bus, run, found[-1].seq if found else 0, most - len(found))
        if not batch.kept:
            raise ConfigError(NONE_KEPT.format(run=run))
        if not batch.groups:
            break
        found += batch.groups
    return found

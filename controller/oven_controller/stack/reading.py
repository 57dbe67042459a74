"""A run's log, wherever it is: by `history` while the stack is up, else from log.jsonl, else from the store itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from oven_controller.bus import Bus
from oven_controller.credentials import Credentials, Role
from oven_controller.errors import BusError, ConfigError, RefusedError
from oven_controller.events import Event
from oven_controller.home import RunFolder, write_whole
from oven_controller.messages import HistoryBatch, HistoryRequest
from oven_controller.names import Subjects
from oven_controller.server import EmbeddedServer

BATCH = 512
AGAIN_S = 0.25


@contextlib.asynccontextmanager
async def connected(folder: RunFolder, role: Role, name: str = "") -> AsyncIterator[Bus]:
    """A connection to the server of a run that is up."""
    path = folder.credentials(role, name)
    credentials = Credentials.load(path) if path else None
    async with Bus.connect(folder.info().url, credentials, name=name or role) as bus:
        yield bus


async def export(bus: Bus, folder: RunFolder) -> int:
    """Write log.jsonl, whole or not at all. Returns the number of events."""
    head = await bus.head(folder.run)
    lines = [event.line() async for event in bus.read(folder.run, until=head)]
    write_whole(folder.export, "".join(line + "\n" for line in lines))
    return len(lines)


def exported(path: Path) -> Iterator[Event]:
    """The events of a log.jsonl, a line at a time. Raises ConfigError naming the line that is not one."""
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield Event.from_line(line)
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{path}, line {number}: {error}") from error


async def batches(bus: Bus, run: str, after: int = 0) -> AsyncIterator[list[Event]]:
    """All events after a sequence, asked from the mesh, as many at a time as it answers with."""
    while True:
        reply = await bus.request(Subjects(run).history, HistoryRequest(after=after, limit=BATCH).wire(), 5)
        batch = HistoryBatch.model_validate_json(reply)
        if not batch.events:
            return
        yield [Event.from_logged(entry) for entry in batch.events]
        after = batch.events[-1].seq
        if after >= batch.head:
            return


async def history(bus: Bus, run: str, after: int = 0) -> list[Event]:
    """The same in one list."""
    return [event async for batch in batches(bus, run, after) for event in batch]


async def stored(folder: RunFolder, after: int = 0) -> list[Event]:
    """The stored events after a sequence, read from the log itself by the one who owns the run's folder."""
    async with connected(folder, "admin") as bus:
        return [event async for event in bus.read(folder.run, after=after, until=await bus.head(folder.run))]


async def whole_log(folder: RunFolder, *, exact: bool = False) -> list[Event]:
    """Every event so far. `exact` reads the stored bytes even while the stack is up, as a replay must."""
    if folder.locked():
        if exact:
            return await stored(folder)
        try:
            async with connected(folder, "monitor") as bus:
                return await history(bus, folder.run)
        except BusError:  # no mesh answers; the log is there all the same
            return await whole_log(folder, exact=True)
    if not folder.export.exists():
        await _export_store(folder)
    return list(exported(folder.export))


async def _export_store(folder: RunFolder) -> None:
    """The stack is down and left no export (it was killed): read the store under the run's lock."""
    info = folder.info()
    if not info.embedded:
        async with connected(folder, "admin") as bus:
            await export(bus, folder)
        return
    if not (folder.server.folder / "store").exists():
        raise ConfigError(f"run {folder.run!r} has no log: it ended before its server started")
    with folder.hold():
        admin = Credentials.load(folder.add_user("admin", "admin"))
        server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
        try:
            async with Bus.connect(server.url, admin) as bus:
                await export(bus, folder)
        except BusError as error:
            raise ConfigError(f"run {folder.run!r} has no log in its store ({error})") from error
        finally:
            await server.stop()


async def listen(bus: Bus, run: str, heard: asyncio.Event) -> None:
    """Set `heard` with everything that goes to the log. Not `oven.<run>.>`: that holds the requests to `history`, so
    one would hear oneself, and be the responder whose absence says that no mesh is there."""

    async def wake(_message: object) -> None:
        heard.set()

    on = Subjects(run)
    for subject in (*on.logged(), *on.from_agents()):
        await bus.subscribe(subject, wake)
    await bus.flush()


async def follow(folder: RunFolder, after: int = 0) -> AsyncIterator[Event]:
    """Events as they come, until the stack is down. What is heard live only says that there is something to ask for:
    order and sequence come from `history`. A server or a mesh that is being started again is waited for."""
    heard = asyncio.Event()
    last = after
    while folder.locked():
        try:
            async with connected(folder, "monitor") as bus:
                await listen(bus, folder.run, heard)
                while folder.locked():
                    heard.clear()
                    for event in await history(bus, folder.run, last):
                        yield event
                        last = event.seq
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(heard.wait(), 1)
        except RefusedError:
            raise
        except BusError:
            await asyncio.sleep(AGAIN_S)
    if not folder.locked() or folder.export.exists():
        for event in await whole_log(folder):
            if event.seq > last:
                yield event

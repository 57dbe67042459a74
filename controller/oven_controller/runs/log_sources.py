"""Sources of a run's log: `history` and the store of a stack that is up, and log.jsonl."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from oven_controller.bus.connection import Bus
from oven_controller.errors import ConfigError
from oven_controller.protocol.events import Event
from oven_controller.protocol.messages import Observation
from oven_controller.protocol.names import Subjects
from oven_controller.protocol.permissions import Role
from oven_controller.protocol.requests import HistoryBatch, HistoryRequest
from oven_controller.protocol.subjects import log_subjects, votes_subjects
from oven_controller.runs.folder import RunFolder
from oven_controller.security import tls
from oven_controller.security.credentials import Credentials

BATCH = 512
"""Events asked of `history` at once."""
ANSWER_S = 5.0


@contextlib.asynccontextmanager
async def connected(folder: RunFolder, role: Role, name: str = "") -> AsyncIterator[Bus]:
    """A connection to the server of a run that is up."""
    path = folder.credentials(role, name)
    credentials = Credentials.load(path) if path else None
    info = folder.info()
    trust = tls.trusting(info.tls_ca) if info.tls_ca else None
    async with Bus.connect(info.url, credentials, name=name or role, trust=trust) as bus:
        yield bus


def exported(folder: RunFolder) -> Iterator[Event]:
    """The events of the run's log.jsonl, a line at a time, unjudged. Raises ConfigError naming the line that is
    none, is not the next, or is another run's, and what is left to read."""
    path, base = folder.export, f"oven.{folder.run}."
    number = last = 0
    tick: int | None = None

    def fault(what: str) -> ConfigError:
        remedy = "move it away, and the store is read instead" if folder.stored() else "restore it from a copy"
        left = "nothing stands before it"
        if number > 1:
            left = f"the {number - 1} lines before it are whole"
        if tick:
            left += f", up to tick {tick}: `--until {tick - 1}` reads them"
        return ConfigError(f"{path}, line {number}: {what}; {left}; {remedy}")

    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                event = Event.from_line(line.decode())
            except (ValueError, KeyError, TypeError) as error:
                raise fault(_damage(line, number, error)) from error
            if not event.subject.startswith(base):
                raise fault(f"the event is on {event.subject}, so this is the log of another run than {folder.run!r}")
            if event.seq != last + 1:
                what = f"{event.seq - last - 1} events between them are missing"
                what = what if event.seq > last else "it stands there twice, or out of order"
                raise fault(f"event {event.seq} follows event {last}; {what}")
            last = event.seq
            if isinstance(event.body, Observation):
                tick = event.body.tick
            yield event
    if not number:
        remedy = "move it away, and the store is read instead" if folder.stored() else "restore it from a copy"
        raise ConfigError(f"{path} is empty; {remedy}")


def _damage(line: bytes, number: int, error: Exception) -> str:
    """What is wrong with a line that is none."""
    if number == 1 and line.startswith(b"\x1f\x8b"):
        return "it is gzip'ed; unpack it with `gunzip` first"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text (byte {error.start} is 0x{line[error.start]:02x})"
    if not line.endswith(b"\n") and line.startswith(b"{"):
        return f"the file is cut off after {len(line)} bytes of it"
    return f"its field {error} is missing" if isinstance(error, KeyError) else str(error)


async def batches(bus: Bus, run: str, after: int = 0, timeout_s: float = ANSWER_S) -> AsyncGenerator[list[Event]]:
    """All events after a sequence, unjudged, asked from the mesh, as many at a time as it answers with. Raises BusError
    when no mesh answers in time."""
    while True:
        reply = await bus.request(Subjects(run).history, HistoryRequest(after=after, limit=BATCH).wire(), timeout_s)
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


async def stored(folder: RunFolder, after: int = 0) -> AsyncGenerator[Event]:
    """The stored events after a sequence, unjudged, read from the log itself by the one who owns the run's folder."""
    async with (
        connected(folder, "admin") as bus,
        contextlib.aclosing(bus.read(folder.run, after=after, until=await bus.head(folder.run))) as log,
    ):
        async for event in log:
            yield event


async def listen(bus: Bus, run: str, heard: asyncio.Event) -> None:
    """Set `heard` with everything that goes to the log. Not `oven.<run>.>`: that holds the requests to `history`, so
    one would hear oneself, and be the responder whose absence says that no mesh is there."""

    def wake(_message: object) -> None:
        heard.set()

    for subject in (*log_subjects(run), *votes_subjects(run)):
        await bus.subscribe_inline(subject, wake)
    await bus.flush()

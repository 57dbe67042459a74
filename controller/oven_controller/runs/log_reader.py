"""A run's log, wherever it is: by `history` while the stack is up, else from log.jsonl, else from the store itself."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, ConfigError, RefusedError
from oven_controller.protocol.events import Event
from oven_controller.protocol.messages import HistoryBatch, HistoryRequest, Observation
from oven_controller.protocol.names import Subjects
from oven_controller.protocol.subjects import log_subjects, votes_subjects
from oven_controller.runs.folder import RunFolder
from oven_controller.security import tls
from oven_controller.security.credentials import Credentials, Role
from oven_controller.security.signing import Keyring
from oven_controller.text.plain_text import clean

BATCH = 512
AGAIN_S = 0.25


def warn(line: str) -> None:
    """On stderr, no matter who reads the log."""
    print(f"warning: {clean(line)}", file=sys.stderr, flush=True)


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


async def batches(bus: Bus, run: str, after: int = 0) -> AsyncGenerator[list[Event]]:
    """All events after a sequence, unjudged, asked from the mesh, as many at a time as it answers with."""
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


async def stored(folder: RunFolder, after: int = 0) -> AsyncGenerator[Event]:
    """The stored events after a sequence, unjudged, read from the log itself by the one who owns the run's folder."""
    async with (
        connected(folder, "admin") as bus,
        contextlib.aclosing(bus.read(folder.run, after=after, until=await bus.head(folder.run))) as log,
    ):
        async for event in log:
            yield event


async def events(
    folder: RunFolder,
    *,
    exact: bool = False,
    until: int | None = None,
    judge: Callable[[Event], Event] | None = None,
    tell: Callable[[str], object] = warn,
) -> AsyncGenerator[Event]:
    """Every event so far, judged by the run's keys or as the caller says. `exact` asks the log itself even while the
    stack is up. `until` ends it at the first observation beyond that tick. `tell` hears what is wrong with the log."""
    judge = judge or Keyring(folder.pin()).judge
    async with contextlib.aclosing(entries(folder, exact=exact, tell=tell)) as log:
        async for entry in log:
            event = judge(entry)
            if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                return
            yield event


async def entries(
    folder: RunFolder, *, exact: bool = False, tell: Callable[[str], object] = warn
) -> AsyncGenerator[Event]:
    """The same unjudged."""
    if not folder.locked():
        from oven_controller.runs import log_recovery  # it reads log.jsonl itself

        await log_recovery.settle(folder, tell)
        for event in exported(folder):
            yield event
        return
    last = 0
    if not exact:
        with contextlib.suppress(BusError):  # no mesh answers; the log is there all the same
            async with connected(folder, "monitor") as bus, contextlib.aclosing(batches(bus, folder.run)) as answers:
                async for batch in answers:
                    for event in batch:
                        yield event
                        last = event.seq
            return
    async with contextlib.aclosing(stored(folder, last)) as log:
        async for event in log:
            yield event


async def whole_log(
    folder: RunFolder, *, exact: bool = False, check: bool = True, tell: Callable[[str], object] = warn
) -> list[Event]:
    """All of `events` in one list. Without `check` a signature need only be there."""
    judge = Keyring(folder.pin(), check=check).judge
    return [event async for event in events(folder, exact=exact, judge=judge, tell=tell)]


async def listen(bus: Bus, run: str, heard: asyncio.Event) -> None:
    """Set `heard` with everything that goes to the log. Not `oven.<run>.>`: that holds the requests to `history`, so
    one would hear oneself, and be the responder whose absence says that no mesh is there."""

    async def wake(_message: object) -> None:
        heard.set()

    for subject in (*log_subjects(run), *votes_subjects(run)):
        await bus.subscribe(subject, wake)
    await bus.flush()


async def follow(folder: RunFolder) -> AsyncIterator[Event]:
    """Events as they come, judged, until the stack is down. What is heard live only says that there is something to ask
    for: order and sequence come from `history`. A server or a mesh that is being started again is waited for."""
    heard = asyncio.Event()
    keyring = Keyring(folder.pin())
    last = 0
    while folder.locked():
        try:
            async with connected(folder, "monitor") as bus:
                await listen(bus, folder.run, heard)
                while folder.locked():
                    heard.clear()
                    for event in map(keyring.judge, await history(bus, folder.run, last)):
                        yield event
                        last = event.seq
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await heard.wait()
        except RefusedError:
            raise
        except BusError:
            await asyncio.sleep(AGAIN_S)
    if not folder.locked():
        async for event in events(folder):
            if event.seq > last:
                yield event

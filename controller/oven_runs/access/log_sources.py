"""Read a run's log from its sources: the `history` service, the server's store, or log.jsonl."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING

from oven_core.errors import ConfigError, reason
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_core.protocol.names import Subjects
from oven_core.protocol.subjects import log_subjects, votes_subjects
from oven_runs.home.run_folder import RunFolder

if TYPE_CHECKING:  # slow to import, and needed only for a run that is up or has no log.jsonl
    import asyncio

    from oven_core.bus.connection import Bus
    from oven_core.protocol.permissions import Role

BATCH_SIZE = 512
"""Number of events per request to `history`."""
REPLY_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def connect(folder: RunFolder, role: Role, name: str = "") -> AsyncIterator[Bus]:
    """Connect to the server of a run that is up."""
    from oven_core.bus.connection import Bus
    from oven_core.security import tls
    from oven_core.security.credentials import Credentials

    path = folder.credentials(role, name)
    credentials = Credentials.load(path) if path else None
    info = folder.info()
    trust = tls.trust_file(info.tls_ca) if info.tls_ca else None
    async with Bus.connect(info.url, credentials, name=name or role, trust=trust) as bus:
        yield bus


@contextlib.asynccontextmanager
async def open_store(folder: RunFolder) -> AsyncIterator[Bus]:
    """Start the server of a run that is down, and connect to it. The caller must hold the folder's lock."""
    from oven_core.bus.connection import Bus
    from oven_core.security.credentials import Credentials
    from oven_runs.server.embedded_server import EmbeddedServer

    admin = Credentials.load(folder.add_user("admin", "admin"))
    server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
    try:
        async with Bus.connect(server.url, admin) as bus:
            yield bus
    finally:
        await server.stop()


def exported_events(folder: RunFolder) -> Iterator[Event]:
    """Yield the events of the run's log.jsonl line by line, unverified. Raises LogFile's errors."""
    return iter(LogFile(folder))


class LogFile:
    """The run's log.jsonl, read line by line. Iterate over it once.

    Raises ConfigError for a line that is not an event, is out of order, or belongs to another run. The message states
    which lines can still be read. Also raises ConfigError if this version no longer supports an event's type.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        offset: int = 0,
        seq: int = 0,
        growing: bool = False,
        tick: int | None = None,
    ) -> None:
        """Start after byte `offset`, the end of event `seq`. `growing` means that the file is still being written, so
        an incomplete last line is ignored. `tick` is that of the last observation before `offset`, for errors."""
        self.offset = offset
        """Bytes read so far, up to the end of a line."""
        self.seq = seq
        """Sequence number of the last event read."""
        self.tick = tick
        """Tick of the last decoded observation, None before the first one."""
        self._folder, self._growing = folder, growing
        self._subject_prefix = f"oven.{folder.run}."
        self._line_number = seq  # of the last line read

    def __iter__(self) -> Iterator[Event]:
        for line in self.lines():
            yield self.read(line)

    def size(self) -> int:
        """Return the file's present size in bytes."""
        return self._folder.export.stat().st_size

    def lines(self) -> Iterator[bytes]:
        """Yield the lines, for a caller that decodes them and calls `advance` for each."""
        with self._folder.export.open("rb", buffering=1 << 18) as lines:
            lines.seek(self.offset)
            for line in lines:
                if self._growing and not line.endswith(b"\n"):
                    return
                self._line_number += 1
                yield line
        if not self._line_number and not self._growing:
            raise ConfigError(f"{self._folder.export} is empty; {self._remedy()}")

    def read(self, line: bytes) -> Event:
        """Return the event of the next line, and count the line as read."""
        event = self.decode(line)
        self.advance(line, event.seq)
        return event

    def advance(self, line: bytes, seq: int) -> None:
        """Count the line of event `seq` as read. Raises ConfigError if it is not the next event."""
        if seq != self.seq + 1:
            problem = "it is a duplicate, or out of order"
            if seq > self.seq:
                problem = f"{seq - self.seq - 1} events between them are missing"
            raise self._make_error(f"event {seq} follows event {self.seq}; {problem}")
        self.offset, self.seq = self.offset + len(line), seq

    def decode(self, line: bytes) -> Event:
        """Return the event of one line."""
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError) as error:
            is_truncated = not line.endswith(b"\n") and line.startswith(b"{")
            raise self._make_error("the line is truncated" if is_truncated else reason(error)) from error
        if not event.subject.startswith(self._subject_prefix):
            run = self._folder.run
            raise self._make_error(f"the event's subject is {event.subject}, so this is not the log of run {run!r}")
        if isinstance(event.body, Malformed) and event.body.fault == "removed":
            raise ConfigError(event.body.reason)
        if isinstance(event.body, Observation):
            self.tick = event.body.tick
        return event

    def _make_error(self, problem: str) -> ConfigError:
        readable = "no line before it can be read"
        if self._line_number > 1:
            readable = f"the {self._line_number - 1} lines before it are intact"
        if self.tick:
            readable += f", up to tick {self.tick}: `--until {self.tick - 1}` reads them"
        return ConfigError(f"{self._folder.export}, line {self._line_number}: {problem}; {readable}; {self._remedy()}")

    def _remedy(self) -> str:
        if self._folder.has_store():
            return "move the file away to read the log from the store instead"
        return "restore it from a backup"


def offset_after(folder: RunFolder, events: int) -> int:
    """Return the byte offset after this many events (lines) of log.jsonl, or the file's size if it has fewer."""
    remaining, offset = events, 0
    with folder.export.open("rb", buffering=0) as file:
        while remaining > 0 and (chunk := file.read(1 << 20)):
            if (lines := chunk.count(b"\n")) < remaining:
                remaining, offset = remaining - lines, offset + len(chunk)
                continue
            line_end = -1
            for _ in range(remaining):
                line_end = chunk.index(b"\n", line_end + 1)
            return offset + line_end + 1
    return offset


async def read_batches(
    bus: Bus, run: str, after: int = 0, timeout_s: float = REPLY_TIMEOUT_S
) -> AsyncGenerator[list[Event]]:
    """Request all events after sequence number `after` from the mesh, unverified. Raises BusError if none answers."""
    from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest

    while True:
        request = HistoryRequest(after=after, limit=BATCH_SIZE)
        reply = await bus.request(Subjects(run).history, request.wire(), timeout_s)
        batch = HistoryBatch.model_validate_json(reply)
        if not batch.events:
            return
        yield [Event.from_logged(entry) for entry in batch.events]
        after = batch.events[-1].seq
        if after >= batch.head:
            return


async def read_history(bus: Bus, run: str, after: int = 0) -> list[Event]:
    """Return all events that `read_batches` yields, as one list."""
    return [event async for batch in read_batches(bus, run, after) for event in batch]


async def stored_events(folder: RunFolder, after: int = 0) -> AsyncGenerator[Event]:
    """Yield the stored events after the sequence number `after`, unverified. Connects with the folder's admin key."""
    async with (
        connect(folder, "admin") as bus,
        contextlib.aclosing(bus.read(folder.run, after=after, until=await bus.head(folder.run))) as log,
    ):
        async for event in log:
            yield event


async def listen(bus: Bus, run: str, wake: asyncio.Event) -> None:
    """Set `wake` whenever a message is published to the log."""

    def on_message(_message: object) -> None:
        wake.set()

    # A subscription to `oven.<run>.>` would also receive requests to `history`. NATS would then count this process as
    # their responder, and a missing mesh would go unnoticed.
    for subject in (*log_subjects(run), *votes_subjects(run)):
        await bus.subscribe_inline(subject, on_message)
    await bus.flush()

"""Sources of a run's log: `history` and the store of a stack that is up, and log.jsonl."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest
from oven_core.protocol.messages import Observation
from oven_core.protocol.names import Subjects
from oven_core.protocol.permissions import Role
from oven_core.protocol.subjects import log_subjects, votes_subjects
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import RunFolder

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
    """The events of the run's log.jsonl, a line at a time, unjudged. Raises ConfigError as `LogFile` does."""
    return iter(LogFile(folder))


class LogFile:
    """The run's log.jsonl, read a line at a time; iterate over it once.

    Iterating raises ConfigError naming the line that is none, is not the next, or is another run's, and what is left to
    read; and where the log needs what was removed from this version.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        offset: int = 0,
        seq: int = 0,
        growing: bool = False,
        each: Callable[[bytes], object] | None = None,
    ) -> None:
        """`offset` and `seq`: behind which byte and event to begin. `growing`: it is being written, so a last line
        without its end is not there yet. `each` is given every line as it is."""
        self.offset = offset
        """Bytes read so far, to the end of a line."""
        self.seq = seq
        """Of the last event read."""
        self._folder, self._growing, self._each = folder, growing, each
        self._number = seq
        self._tick: int | None = None

    def __iter__(self) -> Iterator[Event]:
        base = f"oven.{self._folder.run}."
        with self._folder.export.open("rb", buffering=1 << 18) as lines:
            lines.seek(self.offset)
            for line in lines:
                if self._growing and not line.endswith(b"\n"):
                    return
                self._number += 1
                event = self._read(line, base)
                self.offset, self.seq = self.offset + len(line), event.seq
                if self._each is not None:
                    self._each(line)
                yield event
        if not self._number:
            raise ConfigError(f"{self._folder.export} is empty; {self._remedy()}")

    def _read(self, line: bytes, base: str) -> Event:
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError) as error:
            raise self._fault(_damage(line, self._number, error)) from error
        if not event.subject.startswith(base):
            run = self._folder.run
            raise self._fault(f"the event is on {event.subject}, so this is the log of another run than {run!r}")
        if event.seq != self.seq + 1:
            what = f"{event.seq - self.seq - 1} events between them are missing"
            what = what if event.seq > self.seq else "it stands there twice, or out of order"
            raise self._fault(f"event {event.seq} follows event {self.seq}; {what}")
        if isinstance(event.body, Malformed) and event.body.fault == "removed":
            raise ConfigError(event.body.reason)
        if isinstance(event.body, Observation):
            self._tick = event.body.tick
        return event

    def _fault(self, what: str) -> ConfigError:
        left = "nothing stands before it"
        if self._number > 1:
            left = f"the {self._number - 1} lines before it are whole"
        if self._tick:
            left += f", up to tick {self._tick}: `--until {self._tick - 1}` reads them"
        return ConfigError(f"{self._folder.export}, line {self._number}: {what}; {left}; {self._remedy()}")

    def _remedy(self) -> str:
        return "move it away, and the store is read instead" if self._folder.stored() else "restore it from a copy"


def offset_behind(folder: RunFolder, events: int) -> int:
    """Where in the run's log.jsonl so many events end, an event being a line; the file's end where it has fewer."""
    left, at = events, 0
    with folder.export.open("rb", buffering=0) as file:
        while left > 0 and (piece := file.read(1 << 20)):
            if (lines := piece.count(b"\n")) < left:
                left, at = left - lines, at + len(piece)
                continue
            place = -1
            for _ in range(left):
                place = piece.index(b"\n", place + 1)
            return at + place + 1
    return at


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

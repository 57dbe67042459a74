"""spool.jsonl: learner messages that the log never confirmed, kept until they are appended.

The learner's link holds the file, with a lock on it, for as long as it runs, and removes it once the log has
everything. So a file that is there when no one holds it means that something is missing; its first line says how many
messages, and is made while there is room for it: on a full disk the lines after it may be cut, and the number still
stands. Every other line is one message as it goes into the log, with its id, its signature and a checksum. What the
log has already is known by the ids, so appending twice, or half and then again, stores nothing twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oven_core.errors import ConfigError
from oven_core.protocol.codec import decode
from oven_core.protocol.messages import RunEnded
from oven_core.protocol.subjects import patterns_by

if TYPE_CHECKING:
    from oven_core.bus.connection import Bus

NAME = "spool.jsonl"
HEAD_BYTES = 256
"""Of the first line, padded: it is written again in place, which takes no room on a disk."""
RESERVED_BYTES = 1 << 20
"""Of the disk, while the learner runs: some 3,000 observations, which a disk that is full at the end takes all the
same."""
AGAIN_S = 0.05
_DATA = b', "data": '


@dataclass(frozen=True, slots=True)
class Kept:
    """A learner's message that is ready for the log."""

    subject: str
    data: bytes
    message_id: str
    signature: str

    def line(self) -> bytes:
        head = {"check": self._check(), "subject": self.subject, "id": self.message_id, "signature": self.signature}
        return json.dumps(head)[:-1].encode() + _DATA + self.data + b"}\n"

    @classmethod
    def read(cls, line: bytes) -> Kept | None:
        """None for a line that was cut or altered."""
        front, found, data = line.partition(_DATA)
        if not found or not data.endswith(b"}\n"):
            return None
        try:
            head = json.loads(front + b"}")
            kept = cls(str(head["subject"]), data[:-2], str(head["id"]), str(head["signature"]))
            return kept if head["check"] == kept._check() else None
        except (ValueError, KeyError, TypeError):
            return None

    def place(self) -> tuple[int, ...]:
        """Among its learner's messages, from its id."""
        try:
            return tuple(int(number) for number in self.message_id.split("-")[:2])
        except ValueError:
            return ()

    def _check(self) -> str:
        parts = (self.subject.encode(), self.message_id.encode(), self.signature.encode(), self.data)
        return hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Left:
    """What a spool holds. `lost`: messages that were to be in it and are not whole. `unknown`: its learner ended, by
    SIGKILL or with its machine, before it could say what it still had."""

    messages: tuple[Kept, ...] = ()
    lost: int = 0
    unknown: bool = False

    @property
    def nothing(self) -> bool:
        return not (self.messages or self.lost or self.unknown)

    @property
    def observations(self) -> int:
        return sum(kept.subject.endswith(".observation") for kept in self.messages)

    @property
    def end(self) -> RunEnded | None:
        """Its RunEnded, if that is among them."""
        bodies = (decode("run", kept.data) for kept in reversed(self.messages) if kept.subject.endswith(".run"))
        body = next(bodies, None)
        return body if isinstance(body, RunEnded) else None

    def words(self) -> str:
        """How much is missing: a phrase."""
        said = []
        if self.messages:
            end = ", the run's end among them" if self.end else ""
            said.append(f"{len(self.messages)} messages of the learner ({self.observations} observations{end})")
        if self.lost:
            said.append(f"{self.lost} that are lost")
        if self.unknown:
            said.append("an unknown number of the learner's last messages (it was killed before it could keep them)")
        return " and ".join(said)


class Spool:
    """The file, locked. `left` is what it held when it was taken."""

    def __init__(self, folder: Path, run: str, descriptor: int, left: Left) -> None:
        self.path = folder / NAME
        self.left = left
        self._run = run
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, run: str, *, make: bool = False, wait_s: float = 1.0) -> Spool | None:
        """None while another process holds it, for longer than `wait_s`; and where there is none, unless it is to be
        made. Raises ConfigError for one that is another run's, OSError where it cannot be made."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                descriptor = os.open(folder / NAME, os.O_RDWR | (os.O_CREAT if make else 0), 0o600)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(descriptor, folder / NAME):  # and was not removed meanwhile
                    return cls(folder, run, descriptor, _read(folder / NAME, run))
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return None
                time.sleep(AGAIN_S)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def begin(self) -> None:
        """An empty one: the log has what it held, and its learner has said nothing yet of what it lacks. Raises
        OSError."""
        self._remember()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._head(None, 0), 0)
        if hasattr(os, "posix_fallocate"):
            with contextlib.suppress(OSError):  # what there is room for then has to do
                os.posix_fallocate(self._descriptor, 0, RESERVED_BYTES)
        os.fsync(self._descriptor)
        self.left = Left()

    def keep(self, messages: Sequence[Kept]) -> int:
        """Write them, behind what it holds; how many of them are on the disk. Raises OSError only where not even their
        number could be written."""
        wanted, lost = (*self.left.messages, *messages), self.left.lost
        os.pwrite(self._descriptor, self._head(len(wanted) + lost, lost), 0)
        at, written = HEAD_BYTES, 0
        with contextlib.suppress(OSError):  # e.g. a full disk: the first line says how many there should be
            for message in wanted:
                line = message.line()
                if os.pwrite(self._descriptor, line, at) < len(line):
                    break
                at, written = at + len(line), written + 1
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, at)
            os.fsync(self._descriptor)
        held = len(self.left.messages)
        self.left = Left(wanted[:written], len(wanted) - written + lost)
        return max(0, written - held)

    def done(self) -> None:
        """The log has what it held. Raises OSError."""
        self._remember()
        self.path.unlink(missing_ok=True)

    def _remember(self) -> None:
        """That lines of it are lost has to be said again: in its own file."""
        if self.left.lost:
            paths = (self.path.with_name(f"spool.cut-{number}.jsonl") for number in itertools.count(1))
            next(path for path in paths if not path.exists()).write_bytes(self._head(self.left.lost, self.left.lost))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _head(self, messages: int | None, lost: int) -> bytes:
        """`messages`: how many lines there are to be, the lost ones included."""
        head = json.dumps({"spool": 1, "run": self._run, "messages": messages, "lost": lost}).encode()
        return head.ljust(HEAD_BYTES - 1) + b"\n"


@contextlib.contextmanager
def taken(folder: Path, run: str, wait_s: float = 1.0) -> Iterator[Spool | None]:
    """`Spool.take` for as long as the context lasts."""
    spool = Spool.take(folder, run, wait_s=wait_s)
    try:
        yield spool
    finally:
        if spool is not None:
            spool.close()


def look(folder: Path, run: str) -> Left:
    """What is missing now; nothing where a learner that runs still holds it. Raises ConfigError as `Spool.take`."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return Left()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _read(folder / NAME, run)
    except BlockingIOError:
        return Left()
    finally:
        os.close(descriptor)


def lost_for_good(folder: Path, run: str) -> int:
    """Messages that were lost from spools whose rest the log has."""
    return sum(_read(path, run).lost for path in folder.glob("spool.cut-*.jsonl"))


async def append(bus: Bus, run: str, messages: Iterable[Kept]) -> int:
    """Append those that the log of `run` does not hold, in order; how many those were. Raises BusError."""
    kept = tuple(messages)
    lacking = {message.message_id for message in kept}
    head = await bus.head(run)
    if head:
        async for event in bus.read(run, until=head, subjects=patterns_by(run, "learner")):
            lacking.discard(event.message_id)
    rest = [message for message in kept if message.message_id in lacking]
    for message in rest:
        await bus.append(message.subject, message.data, message_id=message.message_id, signature=message.signature)
    return len(rest)


def _read(path: Path, run: str) -> Left:
    with path.open("rb") as file:
        first = file.readline(HEAD_BYTES + 1)
        if not first:  # made this moment
            return Left()
        try:
            head = json.loads(first)
            owner, number, lost = head["run"], head["messages"], int(head["lost"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is damaged: its first line does not say whose messages it holds; move it away, and what it "
                "held is lost"
            ) from error
        if owner != run:
            raise ConfigError(
                f"{path} holds messages of run {owner!r}, and this is run {run!r}: move it into that run's folder, "
                f"where `oven-controller log {owner}` appends them, or remove it"
            )
        lines = (Kept.read(line) for line in file)
        messages = tuple(sorted((kept for kept in lines if kept is not None), key=Kept.place))
    if number is None:
        return Left(messages, unknown=not messages)
    return Left(messages, lost=max(lost, number - len(messages)))


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False

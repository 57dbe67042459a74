"""The spool (spool.jsonl): a file for the learner's messages that are not in the log yet.

The link, the learner's connection to the bus, keeps the file locked and removes it once the log has every message. So
if the file exists without a lock, the log lacks messages. The first line has the number of messages that the file
should contain. It is padded and rewritten in place, so it is correct even if a full disk truncates the lines after it.
Each other line is one message as it goes into the log, with its id, its signature and a checksum. The ids show which
messages the log already has, so appending a spool twice stores nothing twice.
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
from typing import TYPE_CHECKING, Final

from oven_core.errors import ConfigError

if TYPE_CHECKING:  # slow to import, and most runs have no spool
    from oven_core.bus.connection import Bus
    from oven_core.protocol.messages import RunEnded

NAME: Final = "spool.jsonl"
HEAD_BYTES: Final = 256
"""Length of the padded first line in bytes. The padding leaves room to rewrite the line in place."""
RESERVED_BYTES: Final = 1 << 20
"""Bytes reserved on the disk while the learner runs, in case the disk is full at the end: about 3,000 observations."""
RETRY_S: Final = 0.05
_DATA: Final = b', "data": '  # separates a line's other fields from the message


@dataclass(frozen=True, slots=True)
class SpooledMessage:
    """A learner's message, ready to append to the log."""

    subject: str
    data: bytes
    message_id: str
    signature: str

    def line(self) -> bytes:
        """Return the message as a line of the file."""
        head = {"check": self._checksum(), "subject": self.subject, "id": self.message_id, "signature": self.signature}
        return json.dumps(head)[:-1].encode() + _DATA + self.data + b"}\n"

    @classmethod
    def read(cls, line: bytes) -> SpooledMessage | None:
        """Parse a line. Return None if it was truncated or altered."""
        head_text, separator, data = line.partition(_DATA)
        if not separator or not data.endswith(b"}\n"):
            return None
        try:
            head = json.loads(head_text + b"}")
            message = cls(str(head["subject"]), data[:-2], str(head["id"]), str(head["signature"]))
            return message if head["check"] == message._checksum() else None
        except (ValueError, KeyError, TypeError):
            return None

    def sort_key(self) -> tuple[int, ...]:
        """Return a key that sorts the learner's messages in the order in which it sent them."""
        try:
            return tuple(int(number) for number in self.message_id.split("-")[:2])
        except ValueError:
            return ()

    def _checksum(self) -> str:
        parts = (self.subject.encode(), self.message_id.encode(), self.signature.encode(), self.data)
        return hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class SpoolContent:
    """The messages in a spool."""

    messages: tuple[SpooledMessage, ...] = ()
    lost: int = 0
    """Number of messages that should be in the file but are missing or damaged."""
    has_unknown_loss: bool = False
    """Whether the learner was killed, or its machine failed, before it could write its unsent messages."""

    @property
    def is_empty(self) -> bool:
        return not (self.messages or self.lost or self.has_unknown_loss)

    @property
    def observation_count(self) -> int:
        return sum(message.subject.endswith(".observation") for message in self.messages)

    @property
    def run_end(self) -> RunEnded | None:
        """The learner's RunEnded, if the spool has it."""
        from oven_core.protocol.codec import decode
        from oven_core.protocol.messages import RunEnded

        messages = (message for message in reversed(self.messages) if message.subject.endswith(".run"))
        body = next((decode("run", message.data) for message in messages), None)
        return body if isinstance(body, RunEnded) else None

    def summary(self) -> str:
        """Return a phrase with the number of messages that are missing from the log."""
        parts = []
        if self.messages:
            end = ", including the run's end" if self.run_end else ""
            parts.append(f"{len(self.messages)} messages of the learner ({self.observation_count} observations{end})")
        if self.lost:
            parts.append(f"{self.lost} lost messages")
        if self.has_unknown_loss:
            parts.append("an unknown number of the learner's last messages (it was killed before it could save them)")
        return " and ".join(parts)


class Spool:
    """The locked spool file. `content` is its current content."""

    def __init__(self, folder: Path, run: str, descriptor: int, content: SpoolContent) -> None:
        self.path = folder / NAME
        self.content = content
        self._run = run
        self._descriptor = descriptor

    @classmethod
    def lock(cls, folder: Path, run: str, *, create: bool = False, wait_s: float = 1.0) -> Spool | None:
        """Lock the file. Return None if another process keeps it locked for `wait_s`, or if there is no file and
        `create` is false. Raises ConfigError if the file is another run's, and OSError if it cannot be created."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                descriptor = os.open(folder / NAME, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same_file(descriptor, folder / NAME):  # the file was not removed in the meantime
                    return cls(folder, run, descriptor, _read_content(folder / NAME, run))
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    return None
                time.sleep(RETRY_S)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def reset(self) -> None:
        """Empty the file, after its messages were logged. Until `save`, its number of messages is recorded as unknown.
        Raises OSError."""
        self._record_loss()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, self._make_head(None, 0), 0)
        if hasattr(os, "posix_fallocate"):
            with contextlib.suppress(OSError):  # without a reservation, the free disk space has to be enough later
                os.posix_fallocate(self._descriptor, 0, RESERVED_BYTES)
        os.fsync(self._descriptor)
        self.content = SpoolContent()

    def save(self, messages: Sequence[SpooledMessage]) -> int:
        """Append the messages to the file. Return how many of them are on the disk now. Raises OSError."""
        all_messages, lost = (*self.content.messages, *messages), self.content.lost
        os.pwrite(self._descriptor, self._make_head(len(all_messages) + lost, lost), 0)
        offset, written_count = HEAD_BYTES, 0
        with contextlib.suppress(OSError):  # e.g. a full disk; the first line has the number of expected messages
            for message in all_messages:
                line = message.line()
                if os.pwrite(self._descriptor, line, offset) < len(line):
                    break
                offset, written_count = offset + len(line), written_count + 1
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, offset)
            os.fsync(self._descriptor)
        previous_count = len(self.content.messages)
        self.content = SpoolContent(all_messages[:written_count], len(all_messages) - written_count + lost)
        return max(0, written_count - previous_count)

    def remove(self) -> None:
        """Remove the file, after its messages were logged. Raises OSError."""
        self._record_loss()
        self.path.unlink(missing_ok=True)

    def _record_loss(self) -> None:
        """Write the number of lost messages to a separate file that is never removed."""
        if self.content.lost:
            paths = (self.path.with_name(f"spool.cut-{number}.jsonl") for number in itertools.count(1))
            unused_path = next(path for path in paths if not path.exists())
            unused_path.write_bytes(self._make_head(self.content.lost, self.content.lost))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _make_head(self, messages: int | None, lost: int) -> bytes:
        """Return the first line. `messages` includes the lost messages, and is None if unknown."""
        head = json.dumps({"spool": 1, "run": self._run, "messages": messages, "lost": lost}).encode()
        return head.ljust(HEAD_BYTES - 1) + b"\n"


@contextlib.contextmanager
def locked_spool(folder: Path, run: str, wait_s: float = 1.0) -> Iterator[Spool | None]:
    """Lock the spool, as `Spool.lock` does, for as long as the context lasts."""
    spool = Spool.lock(folder, run, wait_s=wait_s)
    try:
        yield spool
    finally:
        if spool is not None:
            spool.close()


def read_spool(folder: Path, run: str) -> SpoolContent:
    """Return the messages that the log lacks now. While a learner holds the lock, there are none. Raises ConfigError
    if the file is damaged or another run's."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return SpoolContent()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return _read_content(folder / NAME, run)
    except BlockingIOError:
        return SpoolContent()
    finally:
        os.close(descriptor)


def count_permanently_lost(folder: Path, run: str) -> int:
    """Return the number of messages that were lost because an earlier spool was truncated or damaged."""
    return sum(_read_content(path, run).lost for path in folder.glob("spool.cut-*.jsonl"))


async def append_missing(bus: Bus, run: str, messages: Iterable[SpooledMessage]) -> int:
    """Append the messages that the log of `run` does not have, in order. Return their number. Raises BusError."""
    messages = tuple(messages)
    missing_ids = {message.message_id for message in messages}
    if head := await bus.head(run):
        from oven_core.protocol.subjects import patterns_written_by

        async for event in bus.read(run, until=head, subjects=patterns_written_by(run, "learner")):
            missing_ids.discard(event.message_id)
    missing_messages = [message for message in messages if message.message_id in missing_ids]
    for message in missing_messages:
        await bus.append(message.subject, message.data, message_id=message.message_id, signature=message.signature)
    return len(missing_messages)


def _read_content(path: Path, run: str) -> SpoolContent:
    with path.open("rb") as file:
        first = file.readline(HEAD_BYTES + 1)
        if not first:  # the file was created just now
            return SpoolContent()
        try:
            head = json.loads(first)
            owner, expected_count, lost = head["run"], head["messages"], int(head["lost"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} is damaged: its first line does not say which run its messages belong to; move it away to "
                "discard them"
            ) from error
        if owner != run:
            raise ConfigError(
                f"{path} contains messages of run {owner!r}, but this is run {run!r}: move it to that run's folder, "
                f"where `oven-controller log {owner}` appends them, or remove it"
            )
        messages = [message for line in file if (message := SpooledMessage.read(line)) is not None]
    messages.sort(key=SpooledMessage.sort_key)
    if expected_count is None:
        return SpoolContent(tuple(messages), has_unknown_loss=not messages)
    return SpoolContent(tuple(messages), lost=max(lost, expected_count - len(messages)))


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False

"""Read a long log quickly, by skipping superseded events or by reading only the newest events.

More than nine in ten events of a long log are observations, agents' `done` messages and the mesh's StepClosed. Most of
them are superseded by a later one, and a brief log skips these without decoding them. All other events are included in
order, so decisions, votes, receipts and alerts are the same as in the full log. Skipped events are not verified. A
forged observation could thus hide an older one. `replay --verify` reports such forgeries.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from typing import Final, TypeVar

from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder

FIRST_OBSERVATIONS: Final = 3
"""Number of observations per set of metrics that are read before any is skipped, to recognise constant metrics."""
TAIL_BYTES: Final = 100_000
"""Number of bytes at the end of the file in which no event is skipped."""
_Item = TypeVar("_Item")
_METRIC: Final = re.compile(rb'"([^"]*)":')
_COSTS: Final = re.compile(rb'"committee/(tokens|cost_usd)"')
"""Matches observations with the judges' costs. They are never skipped, because readers add up the costs."""
_SKIPPABLE: Final = re.compile(
    rb'\{"seq": (?P<seq>\d+), "time": "[^"]*", "subject": "oven\.(?P<run>[^".]+)\.(?P<subject>[^"]*)", "id": "[^"]*", '
    rb'"signature": "[^"]*", "type": "(?P<type>Observation|AgentStatus|StepClosed)", "data": '
)
_KEY_CHANGE: Final = re.compile(rb'\{"seq": \d+, "time": "[^"]*", "subject": "oven\.[^".]+\.(run|operator)[".]')
"""Matches lines that may change the keys for verifying later events."""
_KEY_SUBJECT: Final = re.compile(rb'\.(?:run|operator)[".]')
"""Finds candidates for _KEY_CHANGE anywhere in a chunk, which is faster than matching each line."""
_CHUNK_BYTES: Final = 1 << 17


@dataclass
class Progress:
    """How far a BriefLog has read, and the lines that it keeps, as Latin-1, which can represent all bytes."""

    offset: int = 0
    seq: int = 0
    tick: int | None = None
    observation_counts: dict[str, int] = field(default_factory=dict)
    observations: dict[str, str] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)


class BriefLog:
    """log.jsonl without superseded events. Iterate over it once. Raises the errors of LogFile.

    An observation is superseded by the next one with the same metrics, if no other event is between them. An agent's
    `done` is superseded by the agent's next status, and StepClosed by the next StepClosed. In the last TAIL_BYTES,
    no event is skipped, so that the newest events are in order.
    """

    def __init__(self, folder: RunFolder, *, growing: bool = False, progress: Progress | None = None) -> None:
        """`growing` means that the file is still being written, so an incomplete last line is ignored. Continue after
        `progress`, as if this object had read the lines before it."""
        progress = progress or Progress()
        self.is_at_tail = False
        """Whether skipping ended at a line that was kept, so that it ends there in any reading of this file."""
        self._log = LogFile(folder, offset=progress.offset, seq=progress.seq, growing=growing, tick=progress.tick)
        self._run = folder.run.encode()
        # set of metrics → number of observations that were read before any was skipped
        self._observation_counts = Counter(_encode_keys(progress.observation_counts))
        # set of metrics → its newest line, not yet superseded
        self._observations = {key: _encode(line) for key, line in _encode_keys(progress.observations).items()}
        # the newest StepClosed, and each agent's newest `done` by its subject
        self._latest = {key: _encode(line) for key, line in _encode_keys(progress.latest).items()}

    @property
    def seq(self) -> int:
        """The sequence number of the last event read."""
        return self._log.seq

    @property
    def unread_bytes(self) -> int:
        """Number of bytes in the file after the last line read."""
        return self._log.size() - self._log.offset

    def progress(self) -> Progress:
        """Return how far this object has read. Call this only before or after `skim`."""
        return Progress(
            self._log.offset,
            self._log.seq,
            self._log.tick,
            _decode_keys(self._observation_counts),
            {key: _decode(line) for key, line in _decode_keys(self._observations).items()},
            {key: _decode(line) for key, line in _decode_keys(self._latest).items()},
        )

    def __iter__(self) -> Iterator[Event]:
        lines = self._log.lines()
        yield from self._skim(lines)
        yield from self._release(self._observations, self._latest)
        for line in lines:  # the rest of the file
            yield self._log.read(line)

    def skim(self, on_line: Callable[[bytes], object]) -> Iterator[Event]:
        """Yield the events before the last TAIL_BYTES. `on_line` is called with every line."""
        yield from self._skim(self._log.lines(), on_line)

    def _skim(self, lines: Iterator[bytes], on_line: Callable[[bytes], object] | None = None) -> Iterator[Event]:
        log = self._log
        tail_start = log.size() - TAIL_BYTES
        if log.offset >= tail_start:
            return
        for line in lines:
            if on_line is not None:
                on_line(line)
            head = _SKIPPABLE.match(line)
            is_next = head is not None and int(head["seq"]) == log.seq + 1 and head["run"] == self._run
            if head is not None and is_next and self._keep(head, line):
                log.advance(line, log.seq + 1)
                if log.offset < tail_start:
                    continue
                self.is_at_tail = True
                return
            yield from self._release(self._observations)
            event = log.read(line)
            if isinstance(event.body, RunStarted):  # earlier events cannot be verified with this event's keys
                yield from self._release(self._latest)
            yield event

    def _keep(self, head: re.Match[bytes], line: bytes) -> bool:
        """Keep the line until it is superseded. Return False if it has to be read now."""
        subject, message_type = head["subject"], head["type"]
        if message_type == b"Observation":
            if _COSTS.search(line):
                return False
            metrics = b",".join(_METRIC.findall(line, line.find(b'"metrics":', head.end())))
            if self._observation_counts[metrics] < FIRST_OBSERVATIONS:
                self._observation_counts[metrics] += 1
                return False
            self._observations[metrics] = line
        elif message_type == b"StepClosed":
            self._latest[message_type] = line
        elif b'"state":"done"' in line:
            self._latest[subject] = line
        else:
            self._latest.pop(subject, None)
            return False
        return True

    def _release(self, *kept_lines: dict[bytes, bytes]) -> Iterator[Event]:
        """Yield the events of the kept lines in order, and forget the lines."""
        events = [self._log.decode(line) for lines in kept_lines for line in lines.values()]
        for lines in kept_lines:
            lines.clear()
        yield from sorted(events, key=lambda event: event.seq)


def _decode(line: bytes) -> str:
    return line.decode("latin-1")


def _encode(line: str) -> bytes:
    return line.encode("latin-1")


def _decode_keys(items: Mapping[bytes, _Item]) -> dict[str, _Item]:
    return {_decode(key): item for key, item in items.items()}


def _encode_keys(items: Mapping[str, _Item]) -> dict[bytes, _Item]:
    return {_encode(key): item for key, item in items.items()}


def newest_events(folder: RunFolder, count: int, keyring: Keyring, *, growing: bool = False) -> list[Event]:
    """Return the newest `count` events of log.jsonl, verified, and any that are added during the call. Earlier lines
    are decoded only if they may change the keys. Raises the errors of LogFile."""
    line_count = 0
    with folder.export.open("rb", buffering=0) as file:
        start = _newest_start(file, count, growing)
        for chunk, end in _line_chunks(file, start):
            for candidate in _KEY_SUBJECT.finditer(chunk, 0, end):
                line_start = chunk.rfind(b"\n", 0, candidate.start()) + 1
                if _KEY_CHANGE.match(chunk, line_start, candidate.end()):
                    number = line_count + chunk.count(b"\n", 0, line_start) + 1
                    line = chunk[line_start : chunk.index(b"\n", line_start) + 1]
                    keyring.verify(LogFile(folder, seq=number).decode(line))
            line_count += chunk.count(b"\n", 0, end)
    return [keyring.verify(event) for event in LogFile(folder, offset=start, seq=line_count, growing=growing)]


def _newest_start(file: FileIO, count: int, growing: bool) -> int:
    """Return the offset of the last `count` lines, or 0 if there are fewer. If the file is growing, an incomplete last
    line does not count."""
    size, length = file.seek(0, os.SEEK_END), _CHUNK_BYTES
    while True:
        start = max(0, size - length)
        file.seek(start)
        tail = file.read(size - start)
        if growing:
            tail = tail[: tail.rfind(b"\n") + 1]
        if start == 0 or tail.count(b"\n") > count:
            break
        length *= 2
    position = len(tail) - 1  # at the end of the last line
    for _ in range(count):
        if (position := tail.rfind(b"\n", 0, max(0, position))) < 0:
            return start
    return start + position + 1


def _line_chunks(file: FileIO, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield the file up to `end`, the end of a line, in chunks, each with the length of its whole lines."""
    file.seek(0)
    position, rest = 0, b""
    while position < end and (data := file.read(min(_CHUNK_BYTES, end - position))):
        position += len(data)
        chunk = rest + data
        length = chunk.rfind(b"\n") + 1
        yield chunk, length
        rest = chunk[length:]

"""Read a long log quickly: without the events that a later one supersedes, or only its newest events.

More than nine in ten events of a long log are observations, agents' `done` and the mesh's StepClosed. Most of them are
superseded by a later one. A brief log skips those without decoding them. Every other event is complete and in order, so
decisions, votes, receipts and alerts are the same as in the full log.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder

FIRST_READINGS: Final = 3
"""Number of first observations with the same metrics that are kept, so that a constant metric is recognised."""
FULL_BYTES: Final = 100_000
"""Bytes at the end of the file that are read in full."""
_METRIC: Final = re.compile(rb'"([^"]*)":')
_COSTS: Final = b'"committee/'
"""Observations with the judges' costs are all kept, because readers add these up."""
_FREQUENT: Final = re.compile(
    rb'\{"seq": (\d+), "time": "[^"]*", "subject": "oven\.([^".]+)\.([^"]*)", "id": "[^"]*", "signature": "[^"]*", '
    rb'"type": "(Observation|AgentStatus|StepClosed)", "data": '
)
_WITH_KEYS: Final = re.compile(rb'\{"seq": \d+, "time": "[^"]*", "subject": "oven\.[^".]+\.(run|operator)[".]')
"""Matches the lines that may change the keys by which later events are verified."""


class BriefLog:
    """log.jsonl without superseded events. Iterate over it once. Raises the errors of LogFile.

    An observation is superseded by the next one with the same metrics, if no other event is between them. An agent's
    `done` is superseded by its next status. StepClosed is superseded by the next StepClosed. The last FULL_BYTES are
    read in full, so that the newest events come in order.
    """

    def __init__(self, folder: RunFolder, *, growing: bool = False) -> None:
        """`growing`: the file is being written, so an incomplete last line is ignored."""
        self._log = LogFile(folder, growing=growing)
        self._run = folder.run.encode()
        self._readings = Counter[bytes]()
        self._observations: dict[bytes, bytes] = {}
        """The newest line with each set of metrics, not yet superseded."""
        self._latest: dict[bytes, bytes] = {}
        """The newest StepClosed and each agent's newest `done`, by the end of their subject."""

    @property
    def seq(self) -> int:
        """The sequence of the last event read."""
        return self._log.seq

    def __iter__(self) -> Iterator[Event]:
        log, lines = self._log, self._log.lines()
        full_from = log.size() - FULL_BYTES
        for line in lines:
            head = _FREQUENT.match(line)
            if head is not None and int(head[1]) == log.seq + 1 and head[2] == self._run and self._hold(head, line):
                log.advance(line, log.seq + 1)
                if log.offset < full_from:
                    continue
                break
            yield from self._released(self._observations)
            event = log.read(line)
            if isinstance(event.body, RunStarted):  # its keys verify the events after it, not those before
                yield from self._released(self._latest)
            yield event
        yield from self._released(self._observations, self._latest)
        for line in lines:
            yield log.read(line)

    def _hold(self, head: re.Match[bytes], line: bytes) -> bool:
        """Keep the line until it is superseded. Return False if it has to be read now."""
        subject, kind = head[3], head[4]
        if kind == b"Observation":
            if _COSTS in line:
                return False
            metrics = b",".join(_METRIC.findall(line, line.find(b'"metrics":', head.end())))
            if self._readings[metrics] < FIRST_READINGS:
                self._readings[metrics] += 1
                return False
            self._observations[metrics] = line
        elif kind == b"StepClosed":
            self._latest[kind] = line
        elif b'"state":"done"' in line:
            self._latest[subject] = line
        else:
            self._latest.pop(subject, None)
            return False
        return True

    def _released(self, *held: dict[bytes, bytes]) -> Iterator[Event]:
        """Yield the events of the kept lines in order, and forget the lines."""
        events = [self._log.decode(line) for lines in held for line in lines.values()]
        for lines in held:
            lines.clear()
        yield from sorted(events, key=lambda event: event.seq)


def newest_events(folder: RunFolder, count: int, keyring: Keyring, *, growing: bool = False) -> tuple[list[Event], int]:
    """Return the newest events of log.jsonl, verified, and the number of all events. Raises the errors of LogFile.

    Earlier lines are only decoded if they may change the keys.
    """
    log, newest = LogFile(folder, growing=growing), deque[bytes]()
    for line in log.lines():
        newest.append(line)
        if len(newest) > count and _WITH_KEYS.match(oldest := newest.popleft()):
            keyring.verify(log.decode(oldest))
    return [keyring.verify(log.decode(line)) for line in newest], log.line

"""Recorded logs: a run's events without times, identities and signatures, which are others in each recording."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import replace

from tests.golden.store import FOLDER

from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import UNKNOWN_TIME, Event

SUFFIX = ".jsonl.gz"
LOGS = "logs"


def packed(events: Iterable[Event]) -> bytes:
    """The lines of an exported log, compressed; the same for the same events. Raises ValueError on what is no message
    of this version."""
    lines = []
    for event in events:
        if isinstance(event.body, Malformed):
            raise ValueError(f"event {event.seq} on {event.subject} is no message: {event.body.reason}")
        lines.append(replace(event, time=UNKNOWN_TIME, message_id="", signature="").line() + "\n")
    return gzip.compress("".join(lines).encode(), 9, mtime=0)


def lines(name: str) -> list[str]:
    """Of a stored log, as they stand in it."""
    return gzip.decompress((FOLDER / LOGS / (name + SUFFIX)).read_bytes()).decode().splitlines()


def events(name: str) -> list[Event]:
    return [Event.from_line(line) for line in lines(name)]


def stored() -> list[str]:
    """The names of all logs."""
    return sorted(path.name.removesuffix(SUFFIX) for path in (FOLDER / LOGS).glob(f"*{SUFFIX}"))


def run_of(log: Iterable[Event]) -> str:
    """The run's name, which every subject has."""
    return next(iter(log)).subject.split(".")[1]


def path(name: str) -> str:
    """Of a log under FOLDER."""
    return f"{LOGS}/{name}{SUFFIX}"

"""Replay a log: recompute every ballot, decision and closed step, and compare them with the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from oven_core.errors import ConfigError
from oven_core.mesh.outputs import OUTPUT_KINDS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import VERSION, Decision
from oven_core.protocol.subjects import kinds_written_by

REPLAYED_KINDS: Final = kinds_written_by("learner", "mesh")
"""Kinds of messages that a replay must be able to read, so another schema version is an error. Messages of agents and
operators with another version are skipped, as in the mesh."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An output that differs from the log. `logged` is None for a missing output, `computed` for an unexpected one."""

    subject: str
    seq: int | None  # of the logged output
    logged: str | None
    computed: str | None


@dataclass
class ReplayReport:
    """The result of a replay: whether all outputs are the same, and where they differ."""

    run: str
    events: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    """Messages that the mesh ignored, by reason."""
    decisions: int = 0
    adopted: int = 0
    equal: int = 0
    different: list[str] = field(default_factory=list)
    """Subjects of the outputs that differ from the log. `missing` outputs are not in the log, and `unexpected` ones are
    only in the log."""
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    """Subjects of the outputs that the mesh of an unfinished run may still publish."""
    first: Difference | None = None  # the first output that is different, missing or unexpected
    tick: int = 0
    finished: bool = False
    """Whether the run has ended."""
    mesh_code: str = ""

    @property
    def same(self) -> bool:
        return not (self.different or self.missing or self.unexpected)


class Replay:
    """Runs a new mesh over a log and compares its outputs with the logged ones."""

    def __init__(self, run: str) -> None:
        self.mesh = Mesh(run)
        self._report = ReplayReport(run)
        self._unmatched: dict[str, tuple[int, Output]] = {}  # subject → (number, output) not yet read from the log
        self._output_count = 0
        self._last_logged = 0  # number of the last output that was read from the log

    def feed(self, event: Event) -> None:
        """Add the next event. Raises ConfigError if the log has another schema version."""
        report, kind = self._report, names.kind(event.subject)
        report.events += 1
        report.by_kind[kind] += 1
        if isinstance(event.body, Malformed):
            check_version(event)
        elif kind in OUTPUT_KINDS and not self.mesh.repeats(event):
            number, output = self._unmatched.pop(event.subject, (0, None))
            self._last_logged = max(self._last_logged, number)
            self._compare(event, output)
        for output in self.mesh.step(event):
            self._output_count += 1
            self._unmatched[output.subject] = (self._output_count, output)
            if isinstance(output.message, Decision):
                report.decisions += 1
                report.adopted += output.message.verdict == "adopted"

    def report(self) -> ReplayReport:
        """Return the result. Call this once, at the end. An output that is not in the log counts as `pending` if the
        run has not ended and no later output is in the log, because a mesh publishes its outputs in order. Otherwise it
        counts as `missing`."""
        report, state = self._report, self.mesh.state
        report.finished, report.mesh_code, report.tick = state.ended, state.mesh_code, state.tick
        report.counters = state.counters
        for number, output in self._unmatched.values():
            if number > self._last_logged and not report.finished:
                report.pending.append(output.subject)
                continue
            report.missing.append(output.subject)
            if report.first is None:
                report.first = Difference(output.subject, None, None, output.data.decode())
        self._unmatched.clear()
        return report

    def _compare(self, event: Event, output: Output | None) -> None:
        report = self._report
        computed = output.data if output else None
        if computed == event.data:
            report.equal += 1
            return
        if output is None:
            report.unexpected.append(event.subject)
        else:
            report.different.append(event.subject)
        if report.first is None:
            computed_text = computed.decode() if computed is not None else None
            report.first = Difference(event.subject, event.seq, event.data.decode(errors="replace"), computed_text)


def replay(events: Iterable[Event], run: str) -> ReplayReport:
    """Replay a log and return the result."""
    log_replay = Replay(run)
    for event in events:
        log_replay.feed(event)
    return log_replay.report()


def check_version(event: Event) -> None:
    """Raise ConfigError if a replay needs this event but this version of the program cannot read it."""
    if not isinstance(event.body, Malformed):
        return
    if event.body.fault == "removed":
        raise ConfigError(event.body.reason)
    if event.body.fault != "version" or names.kind(event.subject) not in REPLAYED_KINDS:
        return
    try:
        version = json.loads(event.data)["v"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = "unknown"
    raise ConfigError(
        f"event {event.seq} on {event.subject} has schema version {version}, but this program reads version "
        f"{VERSION}; replay it with the version of oven-controller that wrote it (its RunStarted has `versions`)"
    )

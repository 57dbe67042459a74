"""Does a log's history follow from its inputs? Every ballot, decision and closed step computed again, byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from oven_controller import names
from oven_controller.events import Event
from oven_controller.mesh.core import OUTPUTS, Mesh, Output
from oven_controller.messages import Decision
from oven_controller.wire import Malformed


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the log first says something else. `logged` is None for a missing output, `computed` for one too many."""

    subject: str
    seq: int | None
    logged: str | None
    computed: str | None


@dataclass
class ReplayReport:
    """What a replay found. `same` is the answer; the rest is for whoever has to find out why it is no."""

    run: str
    events: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)  # what the mesh ignored, and why
    decisions: int = 0
    adopted: int = 0
    equal: int = 0
    different: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)  # computed at the head of a log that goes on
    first: Difference | None = None
    finished: bool = False
    mesh_code: str = ""

    @property
    def same(self) -> bool:
        return not (self.different or self.missing or self.unexpected)


def replay(events: Iterable[Event], run: str) -> ReplayReport:
    """Run a fresh mesh over the log and hold what it computes against what was logged.

    An output that is not in the log is `pending` if the run has not ended and nothing computed after it is in the log
    either (the replicas publish in order); otherwise it is `missing`.
    """
    mesh, report = Mesh(run), ReplayReport(run)
    waiting: dict[str, tuple[int, Output]] = {}
    computed = last_logged = 0
    for event in events:
        kind = names.kind(event.subject)
        report.events += 1
        report.by_kind[kind] += 1
        if kind in OUTPUTS and not isinstance(event.body, Malformed):
            number, output = waiting.pop(event.subject, (0, None))
            last_logged = max(last_logged, number)
            _compare(report, event, output)
        for output in mesh.step(event):
            computed += 1
            waiting[output.subject] = (computed, output)
            if isinstance(output.message, Decision):
                report.decisions += 1
                report.adopted += output.message.verdict == "adopted"
    report.finished, report.mesh_code = mesh.state.ended, mesh.state.mesh_code
    report.counters = mesh.state.counters
    for number, output in waiting.values():
        if number > last_logged and not report.finished:
            report.pending.append(output.subject)
            continue
        report.missing.append(output.subject)
        if report.first is None:
            report.first = Difference(output.subject, None, None, output.message.wire().decode())
    return report


def _compare(report: ReplayReport, event: Event, output: Output | None) -> None:
    computed = output.message.wire() if output else None
    if computed == event.data:
        report.equal += 1
        return
    (report.different if output else report.unexpected).append(event.subject)
    if report.first is None:
        text = computed.decode() if computed is not None else None
        report.first = Difference(event.subject, event.seq, event.data.decode(errors="replace"), text)

"""Convert a log to rows for other tools: measurements by step, and events such as decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Observation, Outcome, Receipt, RunEnded, RunStarted, Value
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.log.active_alerts import ActiveAlerts
from oven_runs.log.decision_line import change_text, main_reason
from oven_runs.log.run_summary import format_value, verdict_text

KNOB_PREFIX: Final = "knob/"
"""Prefix of a knob's name among the measured values."""
EventKind: TypeAlias = Literal["started", "ended", "decision", "receipt", "outcome", "finding", "cleared", "command"]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run, other than a measurement."""

    kind: EventKind
    """`finding` and `cleared` are the beginning and the end of an agent's alert."""
    subject: str
    """The knob; for findings the symptom; for the run's start and end the recipe or the reason."""
    author: str
    """The agent or operator. Empty if only the mesh or the learner took part."""
    status: str
    """A decision's verdict, a receipt's status, "scored" or "unscored" of an outcome; otherwise empty."""
    before: str
    """The value before, as text."""
    after: str
    """The value decided on or read back, or the metric's value in an outcome or a finding, as text."""
    text: str
    """A sentence with the reason."""

    @property
    def title(self) -> str:
        """The event in a few words, for example "decision adopted: optimizer.lr_scale 1 → 0.5"."""
        change = change_text(self.before or None, self.after or None)
        status = f" {self.status}" if self.status else ""
        return f"{self.kind}{status}: {self.subject} {change}".strip()


@dataclass(frozen=True, slots=True)
class Row:
    """What one event of the log adds to an export. It has values, an event, or both."""

    seq: int
    """The sequence number in the log, which identifies the row."""
    time: datetime
    tick: int
    """Never decreases, unlike the step."""
    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    """Metric → value; also `knob/NAME` → value when a knob was announced or changed."""
    event: RunEvent | None = None

    def position(self) -> dict[str, Any]:
        """Return the fields that every table has."""
        return {"seq": self.seq, "time": self.time, "tick": self.tick, "step": self.step}

    def event_fields(self) -> dict[str, Any]:
        """Return the row of the event table. The row must have an event."""
        event = self.event
        assert event is not None
        return self.position() | {name: getattr(event, name) for name in EVENT_FIELDS}


EVENT_FIELDS: Final = RunEvent.__slots__
"""Columns of the event table after those of `Row.position`."""


class Rows:
    """Converts events to rows. Pass the events of the log to `convert` in order, from the first one."""

    def __init__(self) -> None:
        self.alerts = ActiveAlerts()
        """The findings that last."""
        self._tick = self._step = 0
        self._commands: dict[str, str] = {}  # command → operator

    def convert(self, event: Event) -> Row | None:
        """Return the event's row, or None if it adds nothing, as votes and ballots."""
        values: dict[str, float] = {}
        happened: RunEvent | None = None
        alert = self.alerts.feed(event)
        match event.body:
            case Observation() as body:
                self._tick, self._step, values = max(self._tick, body.tick), body.step, body.metrics
            case RunStarted() as body:
                self._tick, self._step = max(self._tick, body.tick), body.step
                values = dict(pair for spec in body.actuators for pair in knob_values(spec.name, spec.value).items())
                happened = RunEvent("started", body.recipe, "", "", "", "", f"training {body.training}")
            case ActuatorAnnounced() as body:
                values = knob_values(body.actuator.name, body.actuator.value)
            case Decision() as body:
                happened = self._decision(body)
            case Receipt() as body:
                self._step = body.step
                if body.status in ("applied", "noop"):
                    values = knob_values(body.actuator, body.after)
                author, texts = self._commands.get(body.command, ""), (_text(body.before), _text(body.after))
                happened = RunEvent("receipt", body.actuator, author, body.status, *texts, body.reason)
            case Outcome() as body:
                status = "scored" if body.scored else "unscored"
                texts = (_text(body.before), _text(body.after))
                happened = RunEvent("outcome", body.actuator, "", status, *texts, f"{body.target}: {body.reason}")
            case Alert() as body if alert is not None:
                happened = _alert_event(event.author, body)
            case OperatorCommand() as body:
                happened = self._command(event.author, body)
            case RunEnded() as body:
                self._step, values = body.step, body.metrics
                happened = RunEvent("ended", body.reason, "", "", "", "", body.detail)
        if not values and happened is None:
            return None
        return Row(event.seq, event.time, self._tick, self._step, values, happened)

    def _decision(self, body: Decision) -> RunEvent:
        proposers = [line.agent for line in body.tally if line.stance == "propose"]
        author = self._commands.get(body.command) or ", ".join(proposers)
        verdict = verdict_text(body.verdict, body.reason)
        texts = (_text(body.before), _text(body.value))
        return RunEvent("decision", body.actuator, author, verdict, *texts, main_reason(body))

    def _command(self, operator: str, body: OperatorCommand) -> RunEvent:
        self._commands[body.id] = operator
        subject = f"{body.action} {body.actuator or body.subject_id or body.agent}".strip()
        return RunEvent("command", subject, operator, "", "", _text(body.value), body.reason)


def knob_values(name: str, value: Value) -> dict[str, float]:
    """Return a knob's value as numbers: one for a scalar, one per share of a mixture, and none for a name."""
    if isinstance(value, dict):
        return {f"{KNOB_PREFIX}{name}/{part}": share for part, share in value.items()}
    return {f"{KNOB_PREFIX}{name}": value} if isinstance(value, float | int) else {}


def _alert_event(author: str, alert: Alert) -> RunEvent:
    kind: EventKind = "finding" if alert.state == "raised" else "cleared"
    return RunEvent(kind, alert.symptom, author, "", "", _text(alert.value), f"{alert.metric}: {alert.reason}")


def _text(value: Value) -> str:
    return "" if value is None else format_value(value)

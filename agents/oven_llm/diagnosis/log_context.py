"""Prepares a run's log for a diagnosis: settings, measurements, votes, decisions and their outcomes. Pure.

Its text is untrusted: third-party agents may have written it. Invisible characters are made visible, long texts are
cut, and all text is data. A model's conclusions are checked against the figures here, never against the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from oven_core.errors import ConfigError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    LogMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_llm.diagnosis.detectors import Alarm, alarms
from oven_llm.judges.sanitize import visible

TEXT: Final = 300
"""Maximum characters of a text. A rationale's figures are in its first sentence."""
ROWS: Final = 2000
"""Maximum rows of each kind. The newest are kept, and a flood cannot crowd out the measurements."""
METRICS: Final = 400
"""Maximum announced metrics, those with a better direction first."""


@dataclass
class LogContext:
    """The content of a log, built by calling `take` for each event. The same log always gives the same bytes."""

    run: RunStarted | None = None
    """The newest announcement."""
    ended: RunEnded | None = None
    ticks: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    series: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """`votes`, "decisions", "receipts", "outcomes", "commands", "alerts", "notices": oldest first."""
    starts: int = 0
    seq: int = 0
    """Sequence of the newest event."""
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Add the next verified event of the log. Malformed and repeated events change nothing."""
        self.seq = max(self.seq, event.seq)
        body = event.body
        if isinstance(body, Observation):
            if self._is_new("observation", body.incarnation, body.n):
                self._observe(body)
        elif isinstance(body, RunStarted):
            if self._is_new("run", body.incarnation, body.n):
                self.run, self.ended, self.starts = body, None, self.starts + 1
        elif isinstance(body, ActuatorAnnounced):
            if self.run is not None:
                self.run = with_announced(self.run, body)
        elif isinstance(body, RunEnded):
            self.ended = body
        elif isinstance(body, LogMessage) and (kind_and_row := _row(body, event.author)) is not None:
            kind, row = kind_and_row
            rows = self.rows.setdefault(kind, [])
            rows.append({"seq": event.seq, **row})
            del rows[:-ROWS]

    def _is_new(self, subject: str, incarnation: int, n: int) -> bool:
        if (incarnation, n) <= self._latest.get(subject, (0, -1)):
            return False
        self._latest[subject] = (incarnation, n)
        return True

    def _observe(self, observation: Observation) -> None:
        self.ticks.append(observation.tick)
        self.steps.append(observation.step)
        for name, value in observation.metrics.items():
            ticks, values = self.series.setdefault(name, ([], []))
            ticks.append(observation.tick)
            values.append(value)

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms on the events added before the first access."""
        return alarms(self.series, self.started.metrics)

    @property
    def started(self) -> RunStarted:
        """The newest run announcement. Raises ConfigError if the log has none."""
        if self.run is None:
            raise ConfigError("the log has no RunStarted, so nothing in it can be diagnosed; is it a run's log?")
        return self.run

    @property
    def announced(self) -> frozenset[str]:
        """The metrics that the run announces. No other metric may be cited."""
        return frozenset(spec.name for spec in self.started.metrics)

    def readings(self, metric: str, first: int, last: int) -> list[float]:
        """Return the metric's readings from tick `first` to `last`, both included."""
        ticks, values = self.series.get(metric, ((), ()))
        return [value for tick, value in zip(ticks, values, strict=True) if first <= tick <= last]

    def plain(self, ranked: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the `context` of programs in the sandbox. `ranked`: the knowledge graph's view of the alarms.
        `config`: the run's settings, if known. Raises ConfigError for a log without observations."""
        run = self.started
        if not self.ticks:
            raise ConfigError(
                "the log holds no observation, so there is nothing to diagnose; let the run make its first steps, or "
                "give a log with measurements"
            )
        names = self._shown_metrics(run)
        return {
            "run": {
                "recipe": _text(run.recipe),
                "max_steps": run.horizon.max_steps,
                "starts": self.starts,
                "ended": self.ended.reason if self.ended else None,
                "autonomy": run.rules.autonomy,
                "versions": {_text(name): _text(version) for name, version in run.versions.items()},
            },
            "config": _plain(config or {}),
            "metrics": {
                spec.name: {"better": spec.better, "held_out": spec.held_out, "unit": _text(spec.unit)}
                for spec in run.metrics
                if spec.name in names
            },
            "actuators": {spec.name: _knob(spec) for spec in run.actuators},
            "ticks": self.ticks,
            "steps": self.steps,
            "observations": {name: self._column(name) for name in names},
            "not_finite": {name: bad for name in names if (bad := self._not_finite(name))},
            **{kind: self.rows.get(kind, []) for kind in KINDS},
            "alarms": [alarm.plain() for alarm in self.alarms],
            "graph": dict(ranked),
        }

    def _shown_metrics(self, run: RunStarted) -> list[str]:
        judged = [spec.name for spec in run.metrics if spec.better != "neither"]
        others = [spec.name for spec in run.metrics if spec.better == "neither"]
        return [name for name in [*judged, *others] if name in self.series][:METRICS]

    def _column(self, name: str) -> list[float | None]:
        """Return one value per tick of `ticks`; None if it was not measured, or is not finite."""
        ticks, values = self.series[name]
        if len(ticks) == len(self.ticks):
            return [value if math.isfinite(value) else None for value in values]
        by_tick = dict(zip(ticks, values, strict=True))
        column = map(by_tick.get, self.ticks)
        return [value if value is not None and math.isfinite(value) else None for value in column]

    def _not_finite(self, name: str) -> list[int]:
        ticks, values = self.series[name]
        return [tick for tick, value in zip(ticks, values, strict=True) if not math.isfinite(value)]


SHOWN_SETTINGS: Final = (
    "recipe", "start", "seed", "steps", "minutes", "agents", "agent_options", "recipe_options", "lockstep", "rules",
)  # fmt: skip
"""Settings shown to the model. Addresses, providers and notification settings are omitted."""


def shown_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a model sees."""
    return {name: resolved[name] for name in SHOWN_SETTINGS if name in resolved}


COLUMNS: Final[Mapping[type[LogMessage], tuple[str, tuple[str, ...]]]] = {
    Vote: ("votes", ("tick", "agent", "actuator", "stance", "value", "confidence", "target", "rationale")),
    Decision: ("decisions", ("tick", "id", "actuator", "verdict", "value", "reason")),
    Receipt: ("receipts", ("tick", "decision", "actuator", "status", "before", "after", "reason")),
    Outcome: ("outcomes", ("tick", "decision", "actuator", "target", "scored", "before", "after", "beat")),
    OperatorCommand: ("commands", ("by", "action", "actuator", "value", "reason")),
    Alert: ("alerts", ("tick", "agent", "state", "symptom", "metric", "value")),
    AgentStatus: ("notices", ("tick", "agent", "state", "text")),
}
"""Table and columns for each message type."""
AUTHOR_COLUMNS: Final = ("agent", "by")
FIELDS: Final = {"decision": "decision_id", "text": "reason"}
"""Message fields whose names differ from their columns."""
KINDS: Final = tuple(kind for kind, _ in COLUMNS.values())


def context_of(events: Iterable[Event], *, seq: int | None = None) -> LogContext:
    """Return the context of a log's events, up to and including the sequence `seq` if it is given."""
    context = LogContext()
    for event in events:
        if seq is not None and event.seq > seq:
            break
        context.take(event)
    return context


def _row(body: LogMessage, author: str) -> tuple[str, dict[str, Any]] | None:
    """Return a message's table and row, or None if no table stores it."""
    if isinstance(body, AgentStatus) and body.state not in ("notice", "cannot_fire"):
        return None
    for message, (kind, columns) in COLUMNS.items():
        if isinstance(body, message):
            return kind, {
                column: _text(author) if column in AUTHOR_COLUMNS else _plain(getattr(body, FIELDS.get(column, column)))
                for column in columns
            }
    return None


def _knob(spec: ActuatorSpec) -> dict[str, Any]:
    return {name: _plain(getattr(spec, name)) for name in ("kind", "low", "high", "scale", "unit", "choices", "value")}


def _text(text: str) -> str:
    return " ".join(visible(text).split())[:TEXT]


def _plain(value: Any, depth: int = 6) -> Any:
    """Return a value for JSON: texts cut, and numbers that are not finite as text."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_text(str(name)): _plain(item, depth - 1) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, depth - 1) for item in value]
    return _text(str(value))

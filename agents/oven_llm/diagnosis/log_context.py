"""Prepares a run's log for a diagnosis: settings, observations, votes, decisions and their outcomes.

The log's strings are untrusted, because third-party agents may have written them. Invisible characters are removed, and
long strings are truncated. A model's conclusions are checked against the figures, never against the strings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oven_agents.diagnosis.engine import find_findings
from oven_agents.diagnosis.run_record import RunRecord
from oven_core.errors import ConfigError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    LogMessage,
    Outcome,
    Receipt,
    RunStarted,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_llm.judges.sanitize import visible_text

MAX_TEXT_CHARACTERS: Final = 300
"""Maximum characters of a string. The first sentence of a rationale, which contains the figures, is shorter."""
MAX_ROWS: Final = 2000
"""Maximum rows per table. Older rows are dropped, so that many messages cannot crowd out the observations."""
MAX_METRICS: Final = 400
"""Maximum announced metrics. Metrics that should rise or fall come first."""


@dataclass
class LogContext(RunRecord):
    """The contents of a log. Call `add` for each event. The same log always results in the same contents."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows by table name (`TABLES`), oldest first."""
    seq: int = 0
    """Sequence number of the latest event."""

    def add(self, event: Event) -> None:
        super().add(event)
        self.seq = max(self.seq, event.seq)
        body = event.body
        if isinstance(body, LogMessage) and (table_and_row := _make_row(body, event.author)) is not None:
            table, row = table_and_row
            rows = self.rows.setdefault(table, [])
            rows.append({"seq": event.seq, **row})
            del rows[:-MAX_ROWS]

    @property
    def announced_metrics(self) -> frozenset[str]:
        """Names of the announced metrics. An answer must not cite others."""
        return frozenset(spec.name for spec in self.started.metrics)

    def get_readings(self, metric: str, first: int, last: int) -> list[float]:
        """Return the metric's readings from tick `first` to `last`, inclusive."""
        ticks, values = self.series.get(metric, ((), ()))
        return [value for tick, value in zip(ticks, values, strict=True) if first <= tick <= last]

    def as_json(self, graph: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the value of the variable `context` in the model's programs. It includes the knowledge graph's reply
        and the run's settings. Raises ConfigError for a log without observations."""
        run = self.started
        if not self.ticks:
            raise ConfigError(
                "the log contains no observations, so there is nothing to diagnose; wait for the run's first steps, or "
                "use a log with measurements"
            )
        names = self._choose_metrics(run)
        return {
            "run": {
                "recipe": _clean_text(run.recipe),
                "max_steps": run.horizon.max_steps,
                "starts": self.start_count,
                "ended": self.run_end.reason if self.run_end else None,
                "autonomy": run.rules.autonomy,
                "versions": {_clean_text(name): _clean_text(version) for name, version in run.versions.items()},
            },
            "config": _to_json(config or {}),
            "metrics": {
                spec.name: {"better": spec.better, "held_out": spec.held_out, "unit": _clean_text(spec.unit)}
                for spec in run.metrics
                if spec.name in names
            },
            "actuators": {spec.name: _describe_knob(spec) for spec in run.actuators},
            "ticks": self.ticks,
            "steps": self.steps,
            "observations": {name: self._get_values_at_all_ticks(name) for name in names},
            "not_finite": {name: ticks for name in names if (ticks := self._find_not_finite_ticks(name))},
            **{table: self.rows.get(table, []) for table in TABLES},
            "findings": [_to_json(finding.model_dump()) for finding in find_findings(self)],
            "alarms": [alarm.as_json() for alarm in self.alarms],
            "graph": dict(graph),
        }

    def _choose_metrics(self, run: RunStarted) -> list[str]:
        """Return the names of at most MAX_METRICS announced metrics that have readings."""
        directed_first = sorted(run.metrics, key=lambda spec: spec.better == "neither")
        return [spec.name for spec in directed_first if spec.name in self.series][:MAX_METRICS]

    def _get_values_at_all_ticks(self, name: str) -> list[float | None]:
        """Return the metric's value at each tick of the log; None if it was not measured or is not finite."""
        ticks, values = self.series[name]
        if ticks == self.ticks:
            return [value if math.isfinite(value) else None for value in values]
        by_tick = dict(zip(ticks, values, strict=True))
        values_or_none = [by_tick.get(tick) for tick in self.ticks]
        return [value if value is not None and math.isfinite(value) else None for value in values_or_none]

    def _find_not_finite_ticks(self, name: str) -> list[int]:
        ticks, values = self.series[name]
        return [tick for tick, value in zip(ticks, values, strict=True) if not math.isfinite(value)]


SHOWN_SETTINGS: Final = (
    "recipe", "start", "seed", "steps", "minutes", "agents", "agent_options", "recipe_options", "lockstep", "rules",
)  # fmt: skip
"""Settings shown to the model. Addresses, providers and notification settings are omitted."""


def shown_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the model sees."""
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
AUTHOR_COLUMNS: Final = ("agent", "by")  # columns for the name of the event's author
COLUMN_FIELDS: Final = {"decision": "decision_id", "text": "reason"}
"""Message fields whose names differ from their columns."""
TABLES: Final = tuple(table for table, _ in COLUMNS.values())


def read_context(events: Iterable[Event], *, seq: int | None = None) -> LogContext:
    """Return the context of a log's events, up to and including the sequence number `seq` if one is passed."""
    context = LogContext()
    for event in events:
        if seq is not None and event.seq > seq:
            break
        context.add(event)
    return context


def _make_row(body: LogMessage, author: str) -> tuple[str, dict[str, Any]] | None:
    """Return a message's table and row, or None if it does not belong in a table."""
    if isinstance(body, AgentStatus) and body.state not in ("notice", "cannot_fire", "failed"):
        return None
    for message_type, (table, columns) in COLUMNS.items():
        if isinstance(body, message_type):
            row = {}
            for column in columns:
                if column in AUTHOR_COLUMNS:
                    row[column] = _clean_text(author)
                else:
                    row[column] = _to_json(getattr(body, COLUMN_FIELDS.get(column, column)))
            return table, row
    return None


def _describe_knob(spec: ActuatorSpec) -> dict[str, Any]:
    names = ("kind", "low", "high", "scale", "unit", "choices", "value")
    return {name: _to_json(getattr(spec, name)) for name in names}


def _clean_text(text: str) -> str:
    return " ".join(visible_text(text).split())[:MAX_TEXT_CHARACTERS]


def _to_json(value: Any, depth: int = 6) -> Any:
    """Convert a value to JSON. Long strings and nesting beyond `depth` are cut. NaN and infinity become strings."""
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_clean_text(str(name)): _to_json(item, depth - 1) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_to_json(item, depth - 1) for item in value]
    return _clean_text(str(value))

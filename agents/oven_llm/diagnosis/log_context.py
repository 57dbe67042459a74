"""A run's log as a diagnosis reads it: what was set, measured, said, decided and done. Pure.

All text in it was written by others, agents of strangers among them: it is made visible and cut, and what it says is
data. Whatever a model concludes from it is held against the figures here, never against the text.
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
"""Characters of a text that are kept: a rationale's figures are in its first sentence."""
ROWS: Final = 2000
"""Newest votes, decisions, receipts, … of each kind that are kept: a flood must not crowd out the measurements."""
METRICS: Final = 400
"""Announced metrics that are kept, the judged ones first: a run that announces more is read by these."""


@dataclass
class LogContext:
    """Filled by `take`, event by event. A log read twice gives the same, byte for byte."""

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
    """Of the newest event that was taken."""
    _latest: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Events come in the log's order, judged; what is malformed or a repeat changes nothing."""
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
        elif isinstance(body, LogMessage):
            found = _row(body, event.author)
            if found is not None:
                kind, row = found
                kept = self.rows.setdefault(kind, [])
                kept.append({"seq": event.seq, **row})
                del kept[:-ROWS]

    def _is_new(self, subject: str, incarnation: int, n: int) -> bool:
        if (incarnation, n) <= self._latest.get(subject, (0, -1)):
            return False
        self._latest[subject] = (incarnation, n)
        return True

    def _observe(self, seen: Observation) -> None:
        self.ticks.append(seen.tick)
        self.steps.append(seen.step)
        tick, series = seen.tick, self.series
        for name, value in seen.metrics.items():
            known = series.get(name)
            if known is None:
                known = series[name] = ([], [])
            known[0].append(tick)
            known[1].append(value)

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Of the detectors, over what was taken when this was first asked for."""
        return alarms(self.series, self.started.metrics)

    @property
    def started(self) -> RunStarted:
        """Raises ConfigError for a log in which no run started."""
        if self.run is None:
            raise ConfigError("the log has no RunStarted, so nothing in it can be diagnosed; is it a run's log?")
        return self.run

    @property
    def announced(self) -> frozenset[str]:
        """The metrics that the run announces: nothing else may be cited."""
        return frozenset(spec.name for spec in self.started.metrics)

    def readings(self, metric: str, first: int, last: int) -> list[float]:
        """The metric's readings from tick `first` to `last`, both included."""
        ticks, values = self.series.get(metric, ((), ()))
        return [value for tick, value in zip(ticks, values, strict=True) if first <= tick <= last]

    def plain(self, ranked: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """As programs read it: `context` in the sandbox. `ranked`: the knowledge graph's view of the alarms; `config`:
        the run's resolved settings, where its folder is there. Raises ConfigError for a log without observations."""
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
        """One value for each tick of `ticks`; None where it was not measured, or is not finite."""
        ticks, values = self.series[name]
        if len(ticks) == len(self.ticks):
            return [value if math.isfinite(value) else None for value in values]
        known = dict(zip(ticks, values, strict=True))
        found = map(known.get, self.ticks)
        return [value if value is not None and math.isfinite(value) else None for value in found]

    def _not_finite(self, name: str) -> list[int]:
        ticks, values = self.series[name]
        return [tick for tick, value in zip(ticks, values, strict=True) if not math.isfinite(value)]


SHOWN_SETTINGS: Final = (
    "recipe", "start", "seed", "steps", "minutes", "agents", "agent_options", "recipe_options", "lockstep", "rules",
)  # fmt: skip
"""Of a run's settings. Addresses, providers and who is notified concern the run alone."""


def shown_settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is shown of them."""
    return {name: resolved[name] for name in SHOWN_SETTINGS if name in resolved}


KINDS: Final = ("votes", "decisions", "receipts", "outcomes", "commands", "alerts", "notices")


def context_of(events: Iterable[Event], *, seq: int | None = None) -> LogContext:
    """Of a log's events, up to and with that sequence if one is given."""
    found = LogContext()
    for event in events:
        if seq is not None and event.seq > seq:
            break
        found.take(event)
    return found


def _row(body: LogMessage, author: str) -> tuple[str, dict[str, Any]] | None:
    match body:
        case Vote():
            return "votes", {
                "tick": body.tick,
                "agent": _text(author),
                "actuator": _text(body.actuator),
                "stance": body.stance,
                "value": _plain(body.value),
                "confidence": body.confidence,
                "target": _text(body.target),
                "rationale": _text(body.rationale),
            }
        case Decision():
            return "decisions", {
                "tick": body.tick,
                "id": body.id,
                "actuator": _text(body.actuator),
                "verdict": body.verdict,
                "value": _plain(body.value),
                "reason": _text(body.reason),
            }
        case Receipt():
            return "receipts", {
                "tick": body.tick,
                "decision": body.decision_id,
                "actuator": _text(body.actuator),
                "status": body.status,
                "before": _plain(body.before),
                "after": _plain(body.after),
                "reason": _text(body.reason),
            }
        case Outcome():
            return "outcomes", {
                "tick": body.tick,
                "decision": body.decision_id,
                "actuator": _text(body.actuator),
                "target": _text(body.target),
                "scored": body.scored,
                "before": _plain(body.before),
                "after": _plain(body.after),
                "beat": _plain(body.beat),
            }
        case OperatorCommand():
            return "commands", {
                "by": _text(author),
                "action": body.action,
                "actuator": _text(body.actuator),
                "value": _plain(body.value),
                "reason": _text(body.reason),
            }
        case Alert():
            return "alerts", {
                "tick": body.tick,
                "agent": _text(author),
                "state": body.state,
                "symptom": body.symptom,
                "metric": _text(body.metric),
                "value": _plain(body.value),
            }
        case AgentStatus() if body.state in ("notice", "cannot_fire"):
            said = {"agent": _text(author), "state": body.state, "text": _text(body.reason)}
            return "notices", {"tick": body.tick, **said}
        case _:
            return None


def _knob(spec: Any) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "low": _plain(spec.low),
        "high": _plain(spec.high),
        "scale": spec.scale,
        "unit": _text(spec.unit),
        "choices": [_text(one) for one in spec.choices],
        "value": _plain(spec.value),
    }


def _text(text: str) -> str:
    return " ".join(visible(text).split())[:TEXT]


def _plain(value: Any, depth: int = 6) -> Any:
    """As JSON has it, without what JSON cannot hold, and with texts cut."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_text(str(name)): _plain(one, depth - 1) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_plain(one, depth - 1) for one in value]
    return _text(str(value))

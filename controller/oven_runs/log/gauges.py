"""Compute gauges and counters for monitoring systems from a run's log.

The labels are metrics and knobs only, so the number of series is bounded by their numbers. A run that invents new
metric names without end is cut off at MAX_METRICS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Outcome, Receipt, RunEnded
from oven_runs.log.export_rows import KNOB_PREFIX, Rows
from oven_runs.log.run_summary import verdict_text

MAX_METRICS: Final = 1000
"""Maximum number of metrics, and separately of knobs, that get a series. Later ones are only counted."""


class Family(NamedTuple):
    """A named group of series."""

    name: str
    kind: str
    """"gauge" or "counter"."""
    help: str


class Sample(NamedTuple):
    """The current value of one series."""

    family: Family
    labels: dict[str, str]
    value: float


STEP = Family("oven_step", "gauge", "Optimizer step of the newest observation")
TICK = Family("oven_tick", "gauge", "Tick of the newest observation, which never decreases")
UP = Family("oven_training", "gauge", "1 while the training runs, 0 after its end")
SEEN = Family("oven_last_event_timestamp_seconds", "gauge", "Unix time of the newest event of the log")
METRIC = Family("oven_metric", "gauge", "Newest value of a metric of the training")
KNOB = Family("oven_knob", "gauge", "Current value of a knob, as read back from the trainer")
DECISIONS = Family("oven_decisions_total", "counter", "Decisions on a knob by verdict")
DECIDED = Family("oven_decision_timestamp_seconds", "gauge", "Unix time of the newest adopted decision on a knob")
RECEIPTS = Family("oven_receipts_total", "counter", "Receipts for changes of a knob by status")
GAIN = Family("oven_outcome_gain", "gauge", "Measured gain of the newest scored change of a knob, by target metric")
FINDINGS = Family("oven_findings_total", "counter", "Findings that agents raised, by the metric that shows them")
ACTIVE = Family("oven_findings_active", "gauge", "Findings that last, by the metric that shows them")
DROPPED = Family("oven_dropped_names", "gauge", "Metrics and knobs without a series, because there are too many")
FAMILIES: Final = (STEP, TICK, UP, SEEN, METRIC, KNOB, DECISIONS, DECIDED, RECEIPTS, GAIN, FINDINGS, ACTIVE, DROPPED)


class Gauges:
    """The current values. Pass the events of the log to `feed` in order, from the first one."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._known: dict[str, set[str]] = {"metric": set(), "knob": set()}
        self._dropped = set[str]()
        self._single: dict[Family, float] = {}
        self._series: dict[Family, dict[tuple[tuple[str, str], ...], float]] = {}

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self._single[SEEN] = event.time.timestamp()
        row = self._rows.convert(event)
        if row is None:
            return
        self._single |= {STEP: row.step, TICK: row.tick, UP: float(not isinstance(event.body, RunEnded))}
        for name, value in row.values.items():
            if name.startswith(KNOB_PREFIX):
                self._set(KNOB, value, knob=name.removeprefix(KNOB_PREFIX))
            else:
                self._set(METRIC, value, metric=name)
        match event.body:
            case Decision() as body:
                self._add(DECISIONS, knob=body.actuator, verdict=verdict_text(body.verdict, body.reason))
                if body.verdict == "adopted":
                    self._set(DECIDED, event.time.timestamp(), knob=body.actuator)
            case Receipt() as body:
                self._add(RECEIPTS, knob=body.actuator, status=body.status)
            case Outcome() as body if body.gain is not None and body.actuator:
                self._set(GAIN, body.gain, knob=body.actuator, metric=body.target)
            case Alert(state="raised") as body:
                self._add(FINDINGS, metric=self._measured(body.metric))

    def samples(self) -> Iterator[Sample]:
        """Yield the current value of every series, grouped by family."""
        for family, value in self._single.items():
            yield Sample(family, {}, value)
        for family, series in self._series.items():
            for labels, value in series.items():
                yield Sample(family, dict(labels), value)
        for metric, count in self._active_findings().items():
            yield Sample(ACTIVE, {"metric": metric}, count)
        yield Sample(DROPPED, {}, len(self._dropped))

    def _active_findings(self) -> Counter[str]:
        return Counter(self._measured(alert.metric) for _, alert in self._rows.alerts.active())

    def _measured(self, metric: str) -> str:
        """Return the metric if the learner has measured it. Agents could otherwise invent names without end."""
        return metric if metric in self._known["metric"] else "other"

    def _set(self, family: Family, value: float, **labels: str) -> None:
        if all(self._may_use(label, name) for label, name in labels.items()):
            self._series.setdefault(family, {})[tuple(labels.items())] = value

    def _add(self, family: Family, **labels: str) -> None:
        count = self._series.get(family, {}).get(tuple(labels.items()), 0.0)
        self._set(family, count + 1, **labels)

    def _may_use(self, label: str, name: str) -> bool:
        """Whether the name gets a series. Other labels, such as a verdict, have few values."""
        if label not in self._known or name in self._known[label]:
            return True
        if len(self._known[label]) >= MAX_METRICS:
            self._dropped.add(name)
            return False
        self._known[label].add(name)
        return True

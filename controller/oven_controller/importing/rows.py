"""Convert logged values to measurements: one row per step, with numbers only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from oven_controller.importing.importer import LogEntry
from oven_runs.metrics.metric_names import TIME_COLUMNS
from oven_runs.metrics.objectives import MetricNames

ROWS_WITHOUT_STEP = "rows without a step"
NOT_NUMBERS = "values that are not numbers"
"""Reasons for skipping rows or values. An import prints how many it skipped for each reason."""

_MISSING = frozenset(("", "-", "--", "none", "null", "n/a", "na", "<na>"))
"""Texts that stand for a missing value, in lower case."""
_NUMBER_WITH_UNIT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:%|s|ms)?\s*,?\s*")
_TOTALS_KEY = "train_runtime"
"""A key that occurs only in a Hugging Face trainer's last entry, which contains totals over the whole run."""

MAX_STEP = 1 << 53
"""Maximum step. Floating-point numbers cannot count further."""


class Row(NamedTuple):
    """The measurements of one step."""

    step: int
    metrics: dict[str, float]
    """Values by column, or by metric after the columns were named."""
    time: float | None
    """Seconds since 1970; None if unknown."""
    epoch: float | None = None
    """The pass over the training data; None if the source does not count passes next to steps."""


def measured_rows(entries: Iterable[LogEntry], skipped: Counter[str], names: MetricNames) -> Iterator[Row]:
    """Yield the measurements. Consecutive entries of one step become one row if they have no metric in common. Values
    that are not numbers and rows without a step are counted in `skipped`. Missing values (None) are omitted. NaN and
    infinities are kept."""
    pending: Row | None = None
    epoch: float | None = None  # the newest one, which also applies to the rows after it
    for entry in entries:
        step = step_number(entry.step)
        if step is None:
            skipped[ROWS_WITHOUT_STEP] += 1
            for name in entry.values:
                names.is_gauge(name)  # remember the column, even though the row is skipped
            continue
        metrics = _measurements(entry, skipped, names)
        epoch = _epoch(entry, names, epoch)
        if pending is not None and pending.step == step and pending.metrics.keys().isdisjoint(metrics):
            pending.metrics.update(metrics)
            pending = pending._replace(epoch=epoch)
            continue
        if not metrics:
            continue
        if pending is not None:
            yield pending
        pending = Row(step, metrics, entry.time, epoch)
    if pending is not None:
        yield pending


def _measurements(entry: LogEntry, skipped: Counter[str], names: MetricNames) -> dict[str, float]:
    """Return the metrics of an entry by column."""
    metrics: dict[str, float] = {}
    has_totals = entry.values.get(_TOTALS_KEY) not in (None, "")
    for name, value in entry.values.items():
        if value is None or not names.is_gauge(name) or (has_totals and name.startswith("train_")):
            continue
        measurement = to_number(value)
        if measurement is not None:
            metrics[name] = measurement
        elif not (isinstance(value, str) and value.strip().lower() in _MISSING):
            skipped[NOT_NUMBERS] += 1
    return metrics


def _epoch(entry: LogEntry, names: MetricNames, newest: float | None) -> float | None:
    """Return the epoch of an entry, or else the newest one before it."""
    for name, value in entry.values.items():
        if names.is_epoch(name) and (epoch := to_number(value)) is not None:
            return epoch
    return newest


def to_number(value: object) -> float | None:
    """Convert a value to a number. Return None if it is not one. Booleans are not numbers. A text may have a unit or a
    comma after the number, e.g. "12%" or "3.4s"."""
    if type(value) is float:  # the most frequent case
        return value
    if isinstance(value, str):
        try:
            return float(value) if "_" not in value else None
        except ValueError:
            match = _NUMBER_WITH_UNIT.fullmatch(value)
            return float(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def step_number(value: object) -> int | None:
    """Convert a value to a step. Return None if it is not an integer from 0 to MAX_STEP."""
    step = to_number(value)
    return int(step) if step is not None and 0 <= step <= MAX_STEP and step.is_integer() else None


def row_time(values: Mapping[str, object]) -> float | None:
    """Return a row's time in seconds since 1970, if it has one."""
    return next((time for name in TIME_COLUMNS if (time := to_number(values.get(name))) is not None), None)

"""Convert logged values to measurements: one row per step, with numbers only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from oven_controller.importing.importer import LogEntry
from oven_controller.importing.metric_names import TIME_COLUMNS, MetricNames

ROWS_WITHOUT_STEP = "rows without a step"
NOT_NUMBERS = "values that are not numbers"
DUPLICATE_VALUES = "duplicate values of a metric in a row"
"""Reasons for skipping rows or values. An import prints how many it skipped for each reason."""

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Row(NamedTuple):
    """The measurements of one step."""

    step: int
    metrics: dict[str, float]
    time: float | None
    """Seconds since 1970; None if unknown."""


def measured_rows(entries: Iterable[LogEntry], skipped: Counter[str], names: MetricNames) -> Iterator[Row]:
    """Yield the measurements. Consecutive entries of one step become one row if they have no metric in common. Values
    that are not numbers and rows without a step are counted in `skipped`. Missing values (None) are omitted. NaN and
    infinities are kept."""
    pending: Row | None = None
    for entry in entries:
        step = step_number(entry.step)
        if step is None:
            skipped[ROWS_WITHOUT_STEP] += 1
            for name in entry.values:
                _ = names[name]  # remember the column, even though the row is skipped
            continue
        metrics: dict[str, float] = {}
        for name, value in entry.values.items():
            metric = names[name]
            if metric is None or value is None:
                continue
            measurement = to_number(value)
            if measurement is None:
                skipped[NOT_NUMBERS] += 1
            elif metric in metrics:
                skipped[DUPLICATE_VALUES] += 1
            else:
                metrics[metric] = measurement
        if not metrics:
            continue
        if pending is not None and pending.step == step and pending.metrics.keys().isdisjoint(metrics):
            pending.metrics.update(metrics)
            continue
        if pending is not None:
            yield pending
        pending = Row(step, metrics, entry.time)
    if pending is not None:
        yield pending


def to_number(value: object) -> float | None:
    """Convert a value to a number. Return None if it is not one. Booleans are not numbers."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def step_number(value: object) -> int | None:
    """Convert a value to a step. Return None if it is not an integer of at least 0."""
    step = to_number(value)
    return int(step) if step is not None and step >= 0 and step.is_integer() else None


def row_time(values: Mapping[str, object]) -> float | None:
    """Return a row's time in seconds since 1970, if it has one."""
    return next((time for name in TIME_COLUMNS if (time := to_number(values.get(name))) is not None), None)

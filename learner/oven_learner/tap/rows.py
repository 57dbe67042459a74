"""Merges the calls of a logger into one row per step, and gives its columns the names of metrics.

The rules are those of `oven-controller import`, but for a log that is still being written: a name is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from oven_runs.metrics.metric_names import STEP_COLUMNS, alias_of, direction, held_out, is_algorithm_loss, is_counter
from oven_runs.metrics.objectives import MetricNames


class Row(NamedTuple):
    """The values of one step."""

    step: int
    values: dict[str, float]


class Rows:
    """Merges calls with the same step. The step never decreases. A counter that starts again, as in a new epoch,
    continues where it was. An evaluation that counts epochs belongs to the step at which it arrives."""

    def __init__(self) -> None:
        self._step = -1
        self._offset = 0
        self._values: dict[str, float] = {}
        self._last_counts: dict[str, int] = {}  # column → the logger's own step of its last value

    def add(self, values: Mapping[str, float], step: object) -> Row | None:
        """Add the values of one call. Return the row before it if that is complete."""
        count = next((_whole(values[name]) for name in STEP_COLUMNS if name in values), None)
        count = _whole(step) if count is None else count
        values = {name: value for name, value in values.items() if not is_counter(name)}
        if not values:
            return None
        is_repeated = not self._values.keys().isdisjoint(values)
        if count is None:
            new_step = self._step + 1 if is_repeated or not self._values else self._step
        else:
            new_step = self._continue(count, values)
        row = None
        if self._values and (new_step != self._step or is_repeated):
            row, self._values = Row(self._step, self._values), {}
        self._step = new_step
        self._values.update(values)
        return row

    def finish(self) -> Row | None:
        """Return the last row, if there is one."""
        return Row(self._step, self._values) if self._values else None

    def _continue(self, count: int, values: Mapping[str, float]) -> int:
        if any(self._last_counts.get(name, -1) > count for name in values):
            self._offset += max(0, self._step + 1 - (count + self._offset))
            self._last_counts.clear()
        self._last_counts.update(dict.fromkeys(values, count))
        return max(count + self._offset, self._step)


class ColumnNames:
    """The metric names of the columns. A new column never takes the name of an earlier one."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rename(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values by metric name."""
        if not values.keys() <= self._names.keys():
            self._add(values)
        return {self._names[column]: value for column, value in values.items()}

    def _add(self, columns: Mapping[str, float]) -> None:
        choice = MetricNames()
        for column in (*self._names, *columns):
            choice.is_gauge(column)
        chosen = choice.choose(dict.fromkeys(choice.columns, 1))
        for column in columns:
            if column not in self._names:
                name = chosen[column]
                while name in self._names.values():
                    name += "_"
                self._names[column] = name


def is_training_metric(column: str) -> bool:
    """Whether the column measures training, unlike held-out metrics, counters, and readings of the machine."""
    if is_counter(column) or held_out(column) is not None:
        return False
    return alias_of(column) is not None or direction(column) != "neither" or is_algorithm_loss(column)


def _whole(value: object) -> int | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() and number >= 0 else None

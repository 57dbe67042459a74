"""Stores recent observations by metric, so that windows return a metric's series faster.

A plain `Window` searches its observations for every series, and the agents of one process read about thirty series per
tick. With these windows, they need less than half of the time and have the same results. A series that contains
discarded steps is computed as in a plain window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from oven_agents.sdk.agent_session import WINDOW_LENGTH
from oven_agents.sdk.window import Window
from oven_core.protocol.actuators import UNDO
from oven_core.protocol.messages import Observation, RunStarted

SPARE_ENTRIES = 4096
"""Number of old entries that a column may keep before they are deleted."""


class _Column:
    """The measurements of one metric: the number of the observation in the run, its tick, and the value."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ticks: list[int] = []
        self.values: list[float] = []

    def begin_index(self, oldest: int, after: int, last: int | None) -> int:
        """Return the index of the first entry that is after tick `after` and not older than observation `oldest`. If
        there are more than `last` such entries, return the index of the first of the newest `last` ones."""
        begin = max(bisect_right(self.ticks, after), bisect_right(self.numbers, oldest - 1))
        return begin if last is None else max(begin, len(self.numbers) - last)


class Columns:
    """The newest observations of one run, by metric. The sessions of a process share them."""

    def __init__(self, window_length: int = WINDOW_LENGTH) -> None:
        self._window_length = window_length
        self._shared: tuple[Observation, ...] = ()
        """The observations of the newest windows. A copy per agent would touch all of them."""
        self._stored: tuple[Observation, ...] = ()
        """The observations in the columns. They follow when an agent first reads a series of a new tick."""
        self.clear()

    def clear(self) -> None:
        """Delete all observations."""
        self._columns: dict[str, _Column] = {}
        self._newest: Observation | None = None
        self.count = 0
        self.step_back, self.step_back_tick = -1, -1
        """The number of the newest observation whose step went back, and the tick before it."""

    def add(self, observation: Observation) -> None:
        """Add the next observation in the log's order."""
        if self._newest is not None and observation.step < self._newest.step:
            self.step_back, self.step_back_tick = self.count, self._newest.tick
        for name, value in observation.metrics.items():
            column = self._columns.setdefault(name, _Column())
            column.numbers.append(self.count)
            column.ticks.append(observation.tick)
            column.values.append(value)
            if len(column.numbers) > self._window_length + SPARE_ENTRIES:
                for entries in (column.numbers, column.ticks, column.values):
                    del entries[:SPARE_ENTRIES]
        self._newest = observation
        self.count += 1

    def _follow(self, observations: Sequence[Observation]) -> None:
        """Add the new ones of a session's observations. Start again if the session has others, as in a new training."""
        new_index = len(observations)
        while new_index and observations[new_index - 1] is not self._newest:
            new_index -= 1
        known_count = self.count if new_index else 0
        if len(observations) != min(known_count + len(observations) - new_index, self._window_length):
            new_index = 0
        if not new_index:
            self.clear()
        for index in range(new_index, len(observations)):
            self.add(observations[index])

    def have(self, observations: Sequence[Observation]) -> bool:
        """Return whether the columns have exactly these observations, those of a window. Older windows are refused."""
        if observations is not self._shared:
            return False
        if observations is not self._stored:
            self._follow(observations)
            self._stored = self._shared
        return True

    @property
    def oldest(self) -> int:
        """The number of the first observation in the window."""
        return max(0, self.count - self._window_length)

    def column(self, metric: str) -> _Column:
        """Return the metric's column, which is empty if it was not measured."""
        return self._columns.get(metric) or _Column()

    def window(self, run: RunStarted, observations: Sequence[Observation], *fields: Any) -> Window:
        """Return a session's window, like `plain_window`."""
        shared = self._shared
        is_same = len(shared) == len(observations) and all(shared[end] is observations[end] for end in (0, -1))
        if not is_same:
            self._shared = tuple(observations)
        return _ColumnarWindow(self, run, self._shared, *fields)


class _ColumnarWindow(Window):
    """A window that reads its series from columns, until these have newer observations."""

    __slots__ = ("_columns",)

    _columns: Columns

    def __init__(self, columns: Columns, *fields: Any) -> None:
        object.__setattr__(self, "_columns", columns)
        super().__init__(*fields)

    def series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[float]:
        if not self._columns.have(self.observations):  # an agent has kept this window
            return super().series(metric, after=after, last=last)
        column = self._columns.column(metric)
        return column.values[column.begin_index(self._columns.oldest, after, last) :]

    def surviving_series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[tuple[int, float]]:
        columns = self._columns
        if not columns.have(self.observations):
            return super().surviving_series(metric, after=after, last=last)
        column = columns.column(metric)
        begin = column.begin_index(columns.oldest, after, last)
        points = list(zip(column.ticks[begin:], column.values[begin:], strict=True))
        # Without a step back among the points, and without an undone rollback, no point was discarded.
        range_has_no_step_back = columns.step_back <= columns.oldest or after >= columns.step_back_tick
        points_are_newer = len(points) == last and bool(points) and column.numbers[begin] >= columns.step_back
        was_undone = any(receipt.actuator == UNDO for receipt in self.receipts)
        if (range_has_no_step_back or points_are_newer) and not was_undone:
            return points
        return super().surviving_series(metric, after=after, last=last)

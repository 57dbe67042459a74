"""A run's recent observations by metric, and windows that are answered from them.

A plain `Window` reads its observations one by one for every question. A review asks some million questions of a run
that is over, so its windows look them up in columns. The answers are the same, also after steps that went back; where
a question touches what a rollback threw away, the plain window answers it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set

from oven_agents.sdk.window import Knob, Window
from oven_core.protocol.actuator_names import UNDO
from oven_core.protocol.messages import BallotOpened, Observation, Receipt, RunStarted

SPARE = 4096
"""Entries that a column keeps beyond those in the window before it is cut."""


class _Column:
    """One metric's measurements: at which observation (counted from the run's first), at which tick, and the value."""

    __slots__ = ("indices", "ticks", "values")

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.ticks: list[int] = []
        self.values: list[float] = []

    def add(self, index: int, tick: int, value: float, oldest: int) -> None:
        self.indices.append(index)
        self.ticks.append(tick)
        self.values.append(value)
        if len(self.indices) > SPARE and self.indices[SPARE // 2] < oldest:
            for column in (self.indices, self.ticks, self.values):
                del column[: SPARE // 2]

    def first(self, oldest: int, after: int, last: int | None) -> int:
        """Where an answer begins: not before observation `oldest`, after tick `after`, at most the `last` ones."""
        begin = bisect_right(self.ticks, after)
        if self.indices and self.indices[0] < oldest:
            begin = max(begin, bisect_right(self.indices, oldest - 1))
        return begin if last is None or last < 0 else max(begin, len(self.indices) - last)


class ColumnarWindow:
    """The newest `size` observations of one run, by metric. Feed it each observation once, in the log's order."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.clear()

    def clear(self) -> None:
        """Another training begins: what was measured before says nothing of it."""
        self._observations: list[Observation] = []
        self._dropped = 0  # observations that were cut off the front of the list
        self._columns: dict[str, _Column] = {}
        self._window: list[Observation] | None = None
        self._went_back = -1  # the newest observation whose step lies below the one before it,
        self._left_at = -1  # and the tick of that one
        self._plain = False  # ticks went back, which no run's may

    def add(self, observation: Observation) -> None:
        index = self._dropped + len(self._observations)
        if self._observations:
            newest = self._observations[-1]
            self._plain |= observation.tick < newest.tick
            if observation.step < newest.step:
                self._went_back, self._left_at = index, newest.tick
        self._observations.append(observation)
        self._window = None
        oldest = self.oldest
        for name, value in observation.metrics.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column()
            column.add(index, observation.tick, value, oldest)
        if len(self._observations) > self._size + SPARE:
            self._observations = self._observations[-self._size :]
            self._dropped = index + 1 - self._size

    @property
    def oldest(self) -> int:
        """The first observation in the window, counted from the run's first."""
        return max(0, self._dropped + len(self._observations) - self._size)

    @property
    def observations(self) -> list[Observation]:
        """Those in the window, oldest first."""
        if self._window is None:
            self._window = self._observations[-self._size :]
        return self._window

    @property
    def last(self) -> Observation:
        return self._observations[-1]

    def series(self, metric: str, after: int, last: int | None) -> list[float] | None:
        """As `Window.series`; None where the columns cannot say."""
        if self._plain:
            return None
        column = self._columns.get(metric)
        return [] if column is None else column.values[column.first(self.oldest, after, last) :]

    def surviving_series(self, metric: str, after: int, last: int | None) -> list[tuple[int, float]] | None:
        """As `Window.surviving_series` where no rollback was taken back; None where the columns cannot say."""
        if self._plain:
            return None
        column = self._columns.get(metric)
        if column is None:
            return []
        begin = column.first(self.oldest, after, last)
        points = list(zip(column.ticks[begin:], column.values[begin:], strict=True))
        if self._went_back <= self.oldest or after >= self._left_at:
            return points
        # A step went back within the window: what lies before that is the plain window's to say.
        enough = len(points) == last and begin < len(column.indices) and column.indices[begin] >= self._went_back
        return points if enough else None

    def window(
        self,
        run: RunStarted,
        observations: Sequence[Observation],
        knobs: Mapping[str, Knob],
        receipts: Sequence[Receipt],
        open_ballots: Mapping[str, BallotOpened],
        commanded: Set[str],
    ) -> Window:
        """The window of a session that has heard what these columns have: `observations` must be the same ones."""
        assert observations[-1] is self.last
        return _ColumnWindow(self, run, knobs, receipts, open_ballots, commanded)


class _ColumnWindow(Window):
    __slots__ = ("_columns",)

    _columns: ColumnarWindow

    def __init__(
        self,
        columns: ColumnarWindow,
        run: RunStarted,
        knobs: Mapping[str, Knob],
        receipts: Sequence[Receipt],
        open_ballots: Mapping[str, BallotOpened],
        commanded: Set[str],
    ) -> None:
        object.__setattr__(self, "_columns", columns)
        super().__init__(run, columns.observations, knobs, receipts, open_ballots, commanded)

    @property
    def last(self) -> Observation:
        return self._columns.last

    def series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[float]:
        points = self._columns.series(metric, after, last)
        return super().series(metric, after=after, last=last) if points is None else points

    def surviving_series(self, metric: str, *, after: int = -1, last: int | None = None) -> list[tuple[int, float]]:
        undone = any(receipt.actuator == UNDO for receipt in self.receipts)
        points = None if undone else self._columns.surviving_series(metric, after, last)
        return super().surviving_series(metric, after=after, last=last) if points is None else points

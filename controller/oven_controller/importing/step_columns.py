"""Choose the column that counts a source's steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from oven_controller.importing.importer import LogEntry, Recording
from oven_controller.importing.rows import row_time, step_number, to_number
from oven_controller.importing.spool import Spool
from oven_core.errors import ConfigError
from oven_runs.metrics.metric_names import canonical, is_counter, mark_held_out, suggest_columns
from oven_runs.metrics.name_tables import BATCHES, EPOCHS, OTHER_COUNTERS, RELIABLE_STEPS

ROW_NUMBER = "row number"
"""Stands for the step column in sources that have none. Rows are counted from 0."""
_PRIORITY = {name: rank for rank, name in enumerate(RELIABLE_STEPS + OTHER_COUNTERS)}
_CALL_COUNTER = "_step"
"""W&B's counter of calls to its logger, for rows without a better counter."""
_MIN_SHARE = 0.5
"""Minimum share of rows in which a step column has a value."""
_MAX_RESUMES = 3
"""Number of decreases that are acceptable in any source. More may mean that the column does not count steps."""
_MAX_TRUSTED_REPEATS = 0.7
"""Maximum share of repeats if the name says step. Several processes may log each step."""
_MAX_REPEATS = 0.2
"""Maximum share of rows that measure a metric again at the same step, unless the name says step."""


@dataclass
class _Candidate:
    """Statistics of a column that may count steps."""

    count: int = 0
    invalid: int = 0
    """Number of values that are not integers of at least 0."""
    repeats: int = 0
    decreases: int = 0
    restarts: int = 0
    """Number of decreases to the first step."""
    epoch_restarts: int = 0
    """Number of decreases in rows in which the epoch increases."""
    distinct: int = 0
    first: int = -1
    last: int = -1
    columns: frozenset[str] = field(default_factory=frozenset)
    """The columns of the rows with the newest step."""

    def add(self, value: object, columns: frozenset[str], new_epoch: bool) -> None:
        self.count += 1
        step = step_number(value)
        if step is None:
            self.invalid += 1
            return
        if self.first < 0:
            self.first = step
        if step < self.last:
            self.decreases += 1
            self.restarts += step == self.first
            self.epoch_restarts += new_epoch
        if step == self.last:
            self.repeats += not columns.isdisjoint(self.columns)
            self.columns |= columns
        else:
            self.distinct += 1
            self.last, self.columns = step, columns

    def counts_steps(self, name: str, rows: int) -> bool:
        """Whether the column counts steps in a source with this number of rows."""
        if self.count < _MIN_SHARE * rows or self.invalid > max(1, 0.1 * self.count):
            return False
        if self.distinct < 2 < rows or self.repeats > _MAX_TRUSTED_REPEATS * rows:
            return False
        if self.epoch_restarts and self.epoch_restarts >= 0.5 * self.decreases:
            return False  # counts within each epoch
        if self.decreases - self.restarts > max(_MAX_RESUMES, 0.1 * rows):
            return False  # e.g. several processes wrote the file in turns
        if name in RELIABLE_STEPS or name == _CALL_COUNTER:
            return True
        max_decreases = rows if name in EPOCHS else 0 if name in BATCHES else _MAX_RESUMES
        return self.repeats <= _MAX_REPEATS * rows and self.decreases <= max_decreases


def number_rows(rows: Iterable[Mapping[str, object]], step_name: str | None, source: object) -> Recording:
    """Choose the step column, and return the rows with their steps. `rows` is read twice. `step_name` is the column
    that the user chose. Raises ConfigError if the rows lack that column."""
    names, candidates, count = _survey(rows)
    if step_name is not None:
        if step_name not in names and count:
            hint = suggest_columns(step_name, names)
            raise ConfigError(f"--rename {step_name}=step: {source} has no column {step_name}; {hint}")
        column: str | None = step_name
    else:
        usable = [name for name, candidate in candidates.items() if candidate.counts_steps(_key(name), count)]
        column = min(usable, key=lambda name: _PRIORITY.get(_key(name), len(_PRIORITY)), default=None)
    if column is None:
        return Recording(_by_row_number(rows), step_column=ROW_NUMBER)
    entries = (LogEntry(row.get(column), row, row_time(row)) for row in rows)
    return Recording(entries, step_column=column)


def _key(name: str) -> str:
    return name if name == _CALL_COUNTER else canonical(name)


def _may_count(name: str) -> bool:
    return name == _CALL_COUNTER or canonical(name) in _PRIORITY


def _survey(rows: Iterable[Mapping[str, object]]) -> tuple[set[str], dict[str, _Candidate], int]:
    """Return the columns, the statistics of those that may count steps, and the number of rows with measurements."""
    names: set[str] = set()
    candidates: dict[str, _Candidate] = {}
    epochs: dict[str, float] = {}
    count = 0
    for row in rows:
        for name in row:
            if name not in names and _may_count(name):
                candidates[name] = _Candidate()
        names.update(row)
        columns = _measured_columns(row)
        if not columns:
            continue
        count += 1
        new_epoch = False
        for name in candidates:
            epoch = to_number(row.get(name)) if _key(name) in EPOCHS else None
            if epoch is not None:
                new_epoch = new_epoch or epoch > epochs.get(name, epoch)
                epochs[name] = epoch
        for name, candidate in candidates.items():
            if row.get(name) is not None:
                candidate.add(row[name], columns, new_epoch and _key(name) not in EPOCHS)
    return names, candidates, count


def _measured_columns(row: Mapping[str, object]) -> frozenset[str]:
    return frozenset(
        name
        for name, value in row.items()
        if value is not None and not is_counter(name) and not (isinstance(value, str) and to_number(value) is None)
    )


def _by_row_number(rows: Iterable[Mapping[str, object]]) -> Iterator[LogEntry]:
    """Number the rows. A row that adds other metrics to the row before, such as an evaluation after an epoch, gets the
    same number."""
    number = -1
    counters: dict[str, object] = {}
    columns: frozenset[str] = frozenset()
    for row in rows:
        new_counters = {name: value for name, value in row.items() if value is not None and _key(name) in _PRIORITY}
        new_columns = _measured_columns(row)
        if not new_columns:
            continue
        if number >= 0 and new_columns.isdisjoint(columns) and new_counters.items() <= counters.items():
            columns |= new_columns
        else:
            number, counters, columns = number + 1, new_counters, new_columns
        yield LogEntry(number, row, row_time(row))


@contextmanager
def open_rows(rows: Iterable[Mapping[str, object]], step_name: str | None, source: object) -> Iterator[Recording]:
    """Store the rows on disk, choose the step column, and provide the rows with their steps. Raises the errors of
    `number_rows`."""
    with closing(Spool()) as spool:
        for row in rows:
            spool.add(dict(mark_held_out(row)))
        yield number_rows(spool, step_name, source)

"""Import measurements from the console output of a training program.

A log has many lines that are not measurements, perhaps even the source of the program. Lines with the same names in the
same order are of one kind. The importer reads the kinds that repeat and that count steps or have a known metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from oven_controller.importing.console.headed_table import HeadedTable
from oven_controller.importing.console.line_parser import Record, parse_boxed, parse_line
from oven_controller.importing.importer import Recording
from oven_controller.importing.spool import Spool
from oven_controller.importing.step_columns import number_rows
from oven_controller.importing.text_lines import read_lines
from oven_core.errors import ConfigError
from oven_runs.metrics.metric_names import core, direction, held_out, is_counter
from oven_runs.metrics.name_tables import LOSSES

MAX_KINDS = 10_000
"""Maximum number of kinds that are counted. Lines of further kinds are skipped."""
_MIN_SHARE_WITH_COUNTER, _MIN_SHARE, _MIN_BLOCK_SHARE = 0.2, 0.5, 0.9
"""Minimum number of lines of a kind without a known metric, as a share of the lines of the main kind: for lines with
counters, for others, and for the lines of a block if no line with a metric has a counter."""
_MAX_SHARE_BEHIND = 0.3
"""Maximum share of lines of a kind that may refer to an earlier step."""
_INHERITED = ("step", "epoch", "episode", "timestep")
"""Counters that apply to the following lines, too."""


@contextmanager
def open_console_log(path: Path, skipped: Counter[str], step: str | None = None) -> Iterator[Recording]:
    """Open a text file with the console output of a training program."""
    with closing(Spool()) as spool:
        choice = _choose_kinds(_store(parse_log(read_lines(path)), spool))
        if not choice.measurements:
            raise ConfigError(
                f"{path} has no usable measurements: it is not a table or JSON, and no line with a step, iteration "
                "or epoch and `name: value` pairs repeats"
            )
        yield number_rows(_KeptRows(spool, choice), step, path)


@dataclass(slots=True)
class _Kind:
    """Statistics of the lines with the same names."""

    number: int
    counters: tuple[str, ...]
    names: frozenset[str]
    has_metric: bool
    """Whether it has a metric with a known direction."""
    lines: int = 0
    transient_lines: int = 0
    behind: int = 0
    """Number of lines that count less than the line before, such as `Best epoch: 7` after epoch 9."""
    varies: bool = False
    """Whether its counters change."""

    @property
    def total(self) -> int:
        return self.lines + self.transient_lines


def parse_log(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a log: lines or parts of lines with counters or measurements, and tables."""
    table: dict[str, float] = {}
    section = ""
    headed_table = HeadedTable()
    for line in lines:
        row = parse_boxed(line) if line.lstrip().startswith("|") else None
        if row is not None:
            name, value = row
            if value is None:
                section = name if name.endswith("/") else ""
            else:
                table[section + name] = value
            continue
        if table:
            yield Record(values=table)
            table, section = {}, ""
        parts = line.replace("\b", "\r").split("\r") if "\r" in line or "\b" in line else [line]
        rows = (headed_table.read(part) or parse_line(part) for part in parts)
        records = [record for record in rows if record.counters or record.values]
        settled = max((index for index, record in enumerate(records) if record.values), default=-1)
        for index, record in enumerate(records):
            record.is_transient = index != settled and bool(record.values)
            if record.values or "batch" not in record.counters:
                yield record
    if table:
        yield Record(values=table)


def _store(records: Iterable[Record], spool: Spool) -> list[_Kind]:
    """Store the records with the numbers of their kinds, and return the kinds."""
    kinds: dict[tuple[str, ...], _Kind] = {}
    newest_counts: dict[str, int] = {}
    for record in records:
        key = (*record.counters, "|", *record.values)
        kind = kinds.get(key)
        if kind is None:
            if len(kinds) >= MAX_KINDS:
                continue
            names = frozenset(name for name in record.values if not is_counter(name))
            kind = _Kind(len(kinds), tuple(record.counters), names, any(_is_known(name) for name in names))
            kinds[key] = kind
        kind.lines += not record.is_transient
        kind.transient_lines += record.is_transient
        if kind.counters:
            main_counter = kind.counters[0]
            is_behind = record.counters[main_counter] < newest_counts.get(main_counter, 0)
            kind.behind += is_behind and main_counter in _INHERITED
            kind.varies = kind.varies or any(newest_counts.get(name, n) != n for name, n in record.counters.items())
            newest_counts |= record.counters
        spool.add((kind.number, record.is_transient, record.counters, record.values))
    return list(kinds.values())


def _is_known(name: str) -> bool:
    parts = held_out(name)
    return direction(parts.rest if parts else name) != "neither" or core(name) in LOSSES


@dataclass(slots=True)
class _Choice:
    """The kinds of lines to read."""

    measurements: set[int] = field(default_factory=set)
    headings: set[int] = field(default_factory=set)
    """Kinds that have only counters. They apply to the following lines."""
    reads_transient: bool = False
    needs_counter: bool = False
    """Whether to skip lines before the first counter."""


def _choose_kinds(kinds: list[_Kind]) -> _Choice:
    choice = _Choice()
    with_values = [kind for kind in kinds if kind.names]
    repeated = [kind for kind in with_values if kind.total >= 2]
    candidates = (
        [kind for kind in repeated if kind.has_metric]
        or [kind for kind in repeated if kind.varies]
        or [kind for kind in with_values if kind.has_metric and kind.counters]  # the log of a single step
    )
    if not candidates:
        return choice
    main = max(candidates, key=lambda kind: (kind.lines, kind.total))
    choice.reads_transient = sum(kind.lines for kind in candidates) < 3
    choice.needs_counter = bool(main.counters)

    def is_current(kind: _Kind) -> bool:
        return kind is main or kind.behind <= _MAX_SHARE_BEHIND * kind.total

    def is_frequent(kind: _Kind) -> bool:
        if not main.counters and not choice.headings:
            return False
        min_share = _MIN_SHARE_WITH_COUNTER if kind.counters else _MIN_SHARE if main.counters else _MIN_BLOCK_SHARE
        return kind.total >= max(2.0, min_share * main.total)

    def extends_main(kind: _Kind) -> bool:
        return kind.counters == main.counters != () and kind.names >= main.names

    choice.headings = {
        kind.number
        for kind in kinds
        if kind.varies and is_current(kind) and (not kind.names or kind.total >= _MIN_SHARE * main.total)
    }
    choice.measurements = {
        kind.number
        for kind in with_values
        if is_current(kind) and (kind in candidates or is_frequent(kind) or extends_main(kind))
    }
    return choice


class _KeptRows:
    """The measurements of the chosen kinds, with the counters of earlier lines."""

    def __init__(self, spool: Spool, choice: _Choice) -> None:
        self._spool = spool
        self._choice = choice

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        counters: dict[str, int] = {}
        for kind, is_transient, own_counters, values in self._spool:
            is_measurement = kind in self._choice.measurements
            if not is_measurement and kind not in self._choice.headings:
                continue
            if is_transient and not self._choice.reads_transient:
                continue
            counters.update((name, count) for name, count in own_counters.items() if name in _INHERITED)
            if is_measurement and (counters or own_counters or not self._choice.needs_counter):
                yield values | counters | own_counters

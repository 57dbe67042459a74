"""Import the files of offline Weights & Biases runs. The `wandb` package must be installed separately.

In W&B, a metric can have an x-axis (`define_metric`), which is another column of the history. The metric's step is that
column's value in the same row, or else its newest value. Axes that do not count steps (epochs, tokens, seconds) are
ignored. Their metrics, and metrics without an axis, get the step of their row.

The file uses LevelDB's log format (github.com/google/leveldb, doc/log_format.md). Its blocks of 32 KiB contain
fragments with a header of 7 bytes (CRC-32, length, kind) and data. This module parses the headers itself because
wandb 0.31 no longer has a reader in Python. The checksum is zlib's CRC-32 of kind and data, without a mask.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from oven_controller.importing.importer import TRUNCATED_ROWS, LogEntry, Recording
from oven_controller.importing.rows import row_time, step_number
from oven_core.errors import ConfigError
from oven_runs.metrics.metric_names import STEP_COLUMNS

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
"""Kinds of fragments: a whole record, its first part, and its last part. Any other kind is a part between these."""
_CALL_COUNTER = "_step"
"""W&B's counter of calls to its logger."""
_NOT_STEP_AXES = ("epoch", "epochs", "tokens", "num_tokens", "samples", "time", "seconds", "_timestamp", "_runtime")
"""Last parts of the names of axes that do not count steps."""


@contextmanager
def open_wandb(path: Path, skipped: Counter[str], step: str | None = None) -> Iterator[Recording]:
    """Open the history in a run's .wandb file."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise ConfigError(
            f"reading {path} needs the package wandb ({error}); run `pip install wandb`, or export the run's "
            "history as CSV or JSONL"
        ) from error
    yield Recording(_read_entries(path, wandb_internal_pb2, skipped, step))


class StepAxes:
    """Finds the step of each metric. Call `define` and `split_row` in the order of the definitions and rows."""

    def __init__(self, step: str | None = None) -> None:
        """`step` is the column that the user chose for the step of all metrics."""
        self._user_column = step
        self._defined_axes: dict[str, str] = {}  # metric → axis
        self._pattern_axes: dict[str, str] = {}  # glob pattern of metrics → axis
        self._axes: dict[str, str] = {}  # cache: metric → axis, or "" if it has none
        self._newest_values: dict[str, object] = {}  # axis → newest value
        self._latest_axis = ""  # the axis that was updated last
        self._step_column = ""  # the first step column that the run used, other than W&B's counter

    def define(self, name: str, glob: str, axis: str) -> None:
        """Set the axis of a metric, or of all metrics that match a glob pattern."""
        step_axis = axis if axis.rsplit("/", 1)[-1] not in _NOT_STEP_AXES else ""
        if glob:
            self._pattern_axes[glob] = step_axis
        else:
            self._defined_axes[name] = step_axis
        self._axes.clear()

    def split_row(self, values: Mapping[str, object]) -> list[tuple[object, dict[str, object]]]:
        """Split a row into (step, values) pairs, because its metrics may have different axes."""
        axes = {name: self._find_axis(name) for name in values}
        for axis in axes.values():
            if axis and axis in values:
                self._newest_values[axis] = values[axis]
                self._latest_axis = axis
        row_step = self._find_row_step(values, axes)
        rows: dict[object, dict[str, object]] = {}
        for name, value in values.items():
            step = self._newest_values.get(axes[name], row_step)
            if step_number(step) is None:
                step = row_step
            rows.setdefault(step, {})[name] = value
        return list(rows.items())

    def _find_row_step(self, values: Mapping[str, object], axes: Mapping[str, str]) -> object:
        """Return the step of metrics without an axis, from the first of these sources that exists:

        1. The column that the user chose. If there is one, the other sources are not used.
        2. The run's step column, in this row.
        3. An axis in this row, preferably the axis of one of the row's metrics.
        4. The newest value of the axis that was updated last.
        5. W&B's counter of calls, unless the run has used a step column, because calls are not always steps.
        """
        if self._user_column:
            return values.get(self._user_column)
        if not self._step_column:
            self._step_column = next((name for name in STEP_COLUMNS if name in values and name != _CALL_COUNTER), "")
        for column in (self._step_column, *axes.values(), *self._newest_values):
            if column in values:
                return values[column]
        if self._latest_axis:
            return self._newest_values[self._latest_axis]
        return None if self._step_column else values.get(_CALL_COUNTER)

    def _find_axis(self, name: str) -> str:
        if self._user_column:
            return ""
        if name not in self._axes:
            axis = self._defined_axes.get(name)
            if axis is None:
                axis = next((self._pattern_axes[glob] for glob in self._pattern_axes if fnmatchcase(name, glob)), "")
            self._axes[name] = "" if name == axis or name.startswith("_") else axis
        return self._axes[name]


def _read_entries(path: Path, protocol: Any, skipped: Counter[str], step: str | None) -> Iterator[LogEntry]:
    axes = StepAxes(step)
    for data in _read_records(path, skipped):
        entry = protocol.Record.FromString(data)
        if entry.HasField("metric"):
            axes.define(entry.metric.name, entry.metric.glob_name, entry.metric.step_metric)
        if not entry.HasField("history"):
            continue
        items = [(item.key or "/".join(item.nested_key), item.value_json) for item in entry.history.item]
        # A histogram, table or image has several values, e.g. `_type`. It counts as one value that is not a number.
        media = {name.rsplit("/", 1)[0] for name, _ in items if name.endswith("/_type")}
        values = {name: _parse_value(text) for name, text in items if name.rsplit("/", 1)[0] not in media}
        for row_step, row in axes.split_row(values | dict.fromkeys(media, "media")):
            yield LogEntry(row_step, row, row_time(values))


def _read_records(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield the file's records. If the program was killed, the last record may be incomplete. It is then counted in
    `skipped`. Raises ConfigError if the format or a checksum is wrong."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(f"{path} is not a W&B run file: it does not begin with {_MAGIC!r}")
        parts: list[bytes] = []
        while True:
            rest_of_block = _BLOCK_BYTES - file.tell() % _BLOCK_BYTES
            if rest_of_block < _HEADER.size:
                file.read(rest_of_block)  # the end of a block that is too short for a header
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                break
            crc, length, kind = _HEADER.unpack(header)
            data = file.read(length)
            if len(data) < length:
                parts.append(data)
                break
            if zlib.crc32(data, zlib.crc32(bytes((kind,)))) != crc:
                raise ConfigError(f"{path} is damaged at byte {file.tell() - length}: the checksum does not match")
            parts = [data] if kind in (_FULL, _FIRST) else [*parts, data]
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = []
        if parts or header:
            skipped[TRUNCATED_ROWS] += 1


def _parse_value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

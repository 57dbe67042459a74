"""Import the files of offline Weights & Biases runs, with the `wandb` package (not part of any extra).

A metric's step is the value of its x-axis (`define_metric`) in the same row, or else the axis's newest value. An axis
that does not count steps (epochs, tokens, seconds) is ignored; its metrics are placed at the step of their row, and so
are metrics without an axis.

The file has LevelDB's log format (github.com/google/leveldb, doc/log_format.md): blocks of 32 KiB with fragments, each
of which has a header of 7 bytes (CRC-32, length, kind) and data. wandb had a Python reader until 0.2x; in 0.31 it is
part of a Go program, so the headers are read here. The checksum is zlib's, unmasked, over kind and data.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from oven_controller.importing.importer import CUT, Logged, Recording
from oven_controller.importing.rows import STEPS, time_of, whole
from oven_core.errors import ConfigError

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK, _HEAD = 32 * 1024, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_CALLS = "_step"
"""W&B's own counter of logger calls."""
_NO_STEPS = ("epoch", "epochs", "tokens", "num_tokens", "samples", "time", "seconds", "_timestamp", "_runtime")
"""Last name parts of axes that do not count steps."""


class WandB:
    """Importer of the history in a run's .wandb file."""

    summary = "a W&B run folder (wandb/offline-run-…) or its run-….wandb"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if source.suffix == ".wandb" else None
        files = sorted(source.glob("run-*.wandb"))
        return files[0] if len(files) == 1 else None

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        try:
            from wandb.proto import wandb_internal_pb2
        except ImportError as error:
            raise ConfigError(
                f"{path} needs the package wandb ({error}): `pip install wandb`; or export the run's history as CSV or "
                "JSONL, which does not need it"
            ) from error
        return Recording(_logged(path, wandb_internal_pb2, skipped, step))


class Axes:
    """Finds the step of each metric from the definitions and rows, in run order."""

    def __init__(self, step: str | None = None) -> None:
        """`step`: the column with the step of all metrics, if the user named it."""
        self._step = step
        self._exact: dict[str, str] = {}
        self._globs: dict[str, str] = {}
        self._axis_of: dict[str, str] = {}  # metric → axis, as far as looked up; empty: it has none
        self._newest: dict[str, object] = {}  # axis → its newest value
        self._key = ""  # the column with the step of rows without another axis

    def define(self, name: str, glob: str, axis: str) -> None:
        """Add a definition, which replaces an earlier one of the same name."""
        step_axis = axis if axis.rsplit("/", 1)[-1] not in _NO_STEPS else ""
        (self._globs if glob else self._exact)[glob or name] = step_axis
        self._axis_of.clear()

    def by_step(self, values: Mapping[str, object]) -> list[tuple[object, dict[str, object]]]:
        """Split one row by step. Returns (step, values) pairs."""
        axes = {name: self._axis(name) for name in values}
        for axis in filter(None, axes.values()):
            if axis in values:
                self._newest[axis] = values[axis]
        usual = self._usual(values, axes)
        steps: dict[object, dict[str, object]] = {}
        for name, value in values.items():
            own = self._newest.get(axes[name], usual) if axes[name] else usual
            steps.setdefault(own if whole(own) is not None else usual, {})[name] = value
        return list(steps.items())

    def _usual(self, values: Mapping[str, object], axes: Mapping[str, str]) -> object:
        """Return the step of metrics without an axis.

        W&B's count of calls is in a different unit than other axes. So if there is another axis, its value in the row
        is used, else its newest value.
        """
        if self._step:
            return values.get(self._step)
        if self._key in ("", _CALLS):
            self._key = next((name for name in STEPS if name in values), self._key)
        if not self._newest or (self._key != _CALLS and self._key in values):
            return values.get(self._key)
        in_row = [axis for axis in (*axes.values(), *self._newest) if axis in values]
        return values[in_row[0]] if in_row else next(reversed(self._newest.values()))

    def _axis(self, name: str) -> str:
        if self._step:
            return ""
        if name not in self._axis_of:
            axis = self._exact.get(name)
            if axis is None:
                axis = next((axis for glob, axis in self._globs.items() if fnmatchcase(name, glob)), "")
            self._axis_of[name] = "" if name == axis or name.startswith("_") else axis
        return self._axis_of[name]


def _logged(path: Path, protocol: Any, skipped: Counter[str], step: str | None) -> Iterator[Logged]:
    axes = Axes(step)
    for data in _records(path, skipped):
        entry = protocol.Record.FromString(data)
        if entry.HasField("metric"):
            axes.define(entry.metric.name, entry.metric.glob_name, entry.metric.step_metric)
        if not entry.HasField("history"):
            continue
        items = [(item.key or "/".join(item.nested_key), item.value_json) for item in entry.history.item]
        # A histogram, a table or a picture has several values, one of which is its type.
        media = {name.rsplit("/", 1)[0] for name, _ in items if name.endswith("/_type")}
        values = {name: _value(text) for name, text in items if name.rsplit("/", 1)[0] not in media}
        for row_step, row in axes.by_step(values | dict.fromkeys(media, "media")):
            yield Logged(row_step, row, time_of(values))


def _records(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield the records. An incomplete last record of a killed program is counted in `skipped`.

    Raises ConfigError for another format or a wrong checksum.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(f"{path} is not a W&B run file: it does not begin with {_MAGIC!r}")
        parts: list[bytes] = []
        while True:
            rest_of_block = _BLOCK - file.tell() % _BLOCK
            if rest_of_block < _HEAD.size:
                file.seek(rest_of_block, 1)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                break
            crc, length, kind = _HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length:
                parts.append(data)
                break
            if zlib.crc32(data, zlib.crc32(bytes((kind,)))) != crc:
                raise ConfigError(f"{path} is damaged at byte {file.tell() - length}: a checksum is wrong")
            parts = [data] if kind in (_FULL, _FIRST) else [*parts, data]
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = []
        if parts or head:
            skipped[CUT] += 1


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


IMPORTER = WandB()

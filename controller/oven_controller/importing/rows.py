"""Convert logged values to measurements: one row per step, numbers only, with the metric names that `attach` uses.

Examples: `train/loss` and `train_loss` → `loss`, `eval_loss` and `val/loss` → `eval/loss`, `lr` → `learning_rate`.
Counters (step, epoch, token count) and totals over the whole run are skipped because they are not gauges. Names that
the user chooses with --rename take precedence. --rename accepts a metric's original name and its converted name.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from oven_controller.importing.importer import LogEntry
from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec

ROWS_WITHOUT_STEP = "rows without a step"
NOT_NUMBERS = "values that are not numbers"
DUPLICATE_VALUES = "duplicate values of a metric in a row"
"""Reasons for which an import skips rows or values. They are the keys of the counts that it prints."""

Direction: TypeAlias = Literal["up", "down", "neither"]

STEP = "step"
_GLOBAL_STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step")
STEP_COLUMNS = (*_GLOBAL_STEPS, "step", "Step", "_step")
"""Names of columns with the optimizer step, most reliable first. W&B's own `_step` counts calls to its logger."""
TIME_COLUMNS = ("_timestamp", "timestamp", "wall_time")
_COUNTERS = frozenset((*STEP_COLUMNS, *TIME_COLUMNS, "epoch", "num_tokens", "total_flos"))
_ALIASES = {"lr": "learning_rate", "train_loss": "loss"}
_HELD_OUT_PREFIXES = ("eval/", "eval_", "val/", "val_", "validation/")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SPEED_METRICS = ("runtime", "samples_per_second", "steps_per_second")
_DIRECTIONS: dict[str, Direction] = {"loss": "down", "reward": "up"}
_EVAL_DIRECTIONS: dict[str, Direction] = {"loss": "down", "accuracy": "up"}


class Row(NamedTuple):
    """The measurements of one step."""

    step: int
    metrics: dict[str, float]
    time: float | None


class MetricNames(dict[str, str | None]):
    """Maps source columns to metric names: the user's names from --rename, or else those that `attach` uses. A column
    that is not a gauge maps to None. Columns are added when they are first looked up."""

    def __init__(self, renames: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.renames = dict(renames or {})
        self.step_column = next((name for name, new in self.renames.items() if new == STEP), None)
        """The column that the user chose as the step."""

    def __missing__(self, name: str) -> str | None:
        default = metric_name(name)
        new_name = self.renames.get(name) or (self.renames.get(default) if default else None)
        if default in self.renames.values():
            default = None  # the user gave its name to another column
        self[name] = None if new_name == STEP else new_name or default
        return self[name]

    def check(self, source: object) -> None:
        """Raise ConfigError if a column that should be renamed does not exist."""
        columns = self.keys() | {metric for name in self if (metric := metric_name(name))}
        for name, new in self.renames.items():
            if name not in columns:
                hint = suggest_columns(name, [column for column in columns if not column.startswith("_")])
                raise ConfigError(f"--rename {name}={new}: {source} has no column {name}; {hint}")


def suggest_columns(name: str, columns: Iterable[str]) -> str:
    """Return a hint for an error message: the columns with similar names, or the first columns if there are none."""
    columns = sorted(columns)
    matches = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    more = ", …" if len(columns) > 8 else ""
    return f"its columns are {', '.join(columns[:8])}{more}" if columns else "it has no columns"


def measured_rows(entries: Iterable[LogEntry], skipped: Counter[str], names: MetricNames) -> Iterator[Row]:
    """Yield the measurements, merging consecutive entries of the same step into one row. Values that are not numbers
    and rows without a step are counted in `skipped`. Missing values (None) are omitted. NaN and infinities are kept."""
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
            measurement = value if type(value) is float else to_number(value)
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


def metric_name(name: str) -> str | None:
    """Return the name that `attach` gives this metric, or None if it is not a gauge."""
    short_name = name.removeprefix("train/")
    if not short_name or short_name in _COUNTERS or name.startswith(("_", "train/train_")):
        return None
    for prefix in _HELD_OUT_PREFIXES:
        if short_name.startswith(prefix) and len(short_name) > len(prefix):
            return "eval/" + short_name.removeprefix(prefix)
    return _ALIASES.get(short_name, short_name)


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


def metric_spec(name: str) -> MetricSpec:
    """Derive a metric's direction, and whether it is held out, from its name."""
    last_part = name.rsplit("/", 1)[-1]
    if name.startswith("eval/") and last_part not in _SPEED_METRICS:
        better = _EVAL_DIRECTIONS.get(last_part, "neither")
        return MetricSpec(name=name, better=better, held_out=True)
    return MetricSpec(name=name, better=_DIRECTIONS.get(name, "neither"))

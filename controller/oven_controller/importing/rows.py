"""Convert logged values to measurements, with one row per step, numbers only and the metric names of `attach`.

Names: `train/loss`, `train_loss` → `loss`; `eval_loss`, `val/loss` → `eval/loss`; `lr` → `learning_rate`. Counters
(step, epoch, token count) and totals of a whole training are not gauges and are skipped. Names that the user changes
take precedence. The user can give the source's name or the converted name.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from oven_controller.importing.importer import Logged
from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec

NO_STEP = "rows without a step"
NO_NUMBER = "values that are not numbers"
TWICE = "duplicate values of a metric in a row"

STEP = "step"
STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step", "step", "Step", "_step")
"""Columns with the optimizer step, the most reliable first. W&B's own `_step` counts calls of its logger."""
TIMES = ("_timestamp", "timestamp", "wall_time")
_COUNTERS = frozenset((*STEPS, *TIMES, "epoch", "num_tokens", "total_flos"))
_ALIASES = {"lr": "learning_rate", "train_loss": "loss"}
_HELD_OUT = ("eval/", "eval_", "val/", "val_", "validation/")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TIMINGS = ("runtime", "samples_per_second", "steps_per_second")


class Row(NamedTuple):
    """The measurements of one step."""

    step: int
    metrics: dict[str, float]
    time: float | None


class Names(dict[str, str | None]):
    """Maps source columns to metric names: from `--rename`, else as in `attach`. None means that it is not a gauge.

    It contains only the columns looked up so far.
    """

    def __init__(self, renamed: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.renamed = dict(renamed or {})
        self.step = next((name for name, new in self.renamed.items() if new == STEP), None)
        """The column that the user chose as the step."""

    def __missing__(self, name: str) -> str | None:
        usual = metric_name(name)
        new = self.renamed.get(name) or (self.renamed.get(usual) if usual else None)
        if usual in self.renamed.values():
            usual = None  # the user gave its name to another column
        self[name] = result = None if new == STEP else new or usual
        return result

    def check(self, source: object) -> None:
        """Raise ConfigError if a column that should be renamed does not exist."""
        columns = self.keys() | {usual for name in self if (usual := metric_name(name))}
        for name, new in self.renamed.items():
            if name not in columns:
                shown = [column for column in columns if not column.startswith("_")]
                raise ConfigError(f"--rename {name}={new}: there is no {name} in {source}; {nearest(name, shown)}")


def nearest(name: str, columns: Iterable[str]) -> str:
    """Return similar columns, or some columns, as the end of an error message."""
    columns = sorted(columns)
    near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = ", …" if len(columns) > 8 else ""
    return f"its columns are {', '.join(columns[:8])}{more}" if columns else "it has no columns"


def rows(logged: Iterable[Logged], skipped: Counter[str], names: Names) -> Iterator[Row]:
    """Merge consecutive calls at the same step into one row.

    Values that are not numbers and rows without a step are counted in `skipped`. A value that was not measured (None)
    is absent. NaN and infinities stay.
    """
    pending: Row | None = None
    for entry in logged:
        step = whole(entry.step)
        if step is None:
            skipped[NO_STEP] += 1
            for name in entry.values:
                _ = names[name]  # remember the column, even though the row is skipped
            continue
        metrics: dict[str, float] = {}
        for name, value in entry.values.items():
            metric = names[name]
            if metric is None or value is None:
                continue
            measured = value if type(value) is float else number(value)
            if measured is None:
                skipped[NO_NUMBER] += 1
            elif metric in metrics:
                skipped[TWICE] += 1
            else:
                metrics[metric] = measured
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
    """Return the name of this metric in `attach`; None if it is not a gauge."""
    bare = name.removeprefix("train/")
    if not bare or bare in _COUNTERS or name.startswith("_") or (bare is not name and bare.startswith("train_")):
        return None
    for prefix in _HELD_OUT:
        if bare.startswith(prefix) and len(bare) > len(prefix):
            return "eval/" + bare.removeprefix(prefix)
    return _ALIASES.get(bare, bare)


def number(value: object) -> float | None:
    """Convert a value to a number; None if it is not one. Booleans are not numbers."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """Convert a value to a step, an integer from 0 on; None if it is not one."""
    step = number(value)
    return int(step) if step is not None and step >= 0 and step.is_integer() else None


def time_of(values: Mapping[str, object]) -> float | None:
    """Return a row's time in seconds since 1970, if it has one."""
    return next((time for name in TIMES if (time := number(values.get(name))) is not None), None)


def gauge(name: str) -> MetricSpec:
    """Describe a metric as far as its name allows."""
    last = name.rsplit("/", 1)[-1]
    if name.startswith("eval/") and last not in _TIMINGS:
        return MetricSpec(
            name=name, better="down" if last == "loss" else "up" if last == "accuracy" else "neither", held_out=True
        )
    return MetricSpec(name=name, better="down" if name == "loss" else "up" if name == "reward" else "neither")

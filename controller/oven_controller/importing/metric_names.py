"""Choose metric names for the columns of a source. By default they are the names that `oven_learner.attach` uses.

Examples: `train/loss` and `train_loss` → `loss`, `eval_loss` and `val/loss` → `eval/loss`, `lr` → `learning_rate`.
Counters (step, epoch, token count) and totals over the whole run are skipped because they are not gauges. Names that
the user chooses with --rename take precedence. --rename accepts a column's name and the metric name made from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec

Direction: TypeAlias = Literal["up", "down", "neither"]

STEP = "step"
"""Target of the rename that chooses the step column."""
_GLOBAL_STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step")
STEP_COLUMNS = (*_GLOBAL_STEPS, "step", "Step", "_step")
"""Names of columns with the optimizer step, most reliable first. W&B's own `_step` counts calls to its logger."""
TIME_COLUMNS = ("_timestamp", "timestamp", "wall_time")
_COUNTERS = frozenset((*STEP_COLUMNS, *TIME_COLUMNS, "epoch", "num_tokens", "total_flos"))
_ALIASES = {"lr": "learning_rate", "train_loss": "loss"}
_HELD_OUT_PREFIXES = ("eval/", "eval_", "val/", "val_", "validation/")
_SPEED_METRICS = ("runtime", "samples_per_second", "steps_per_second")
_DIRECTIONS: dict[str, Direction] = {"loss": "down", "reward": "up"}
_EVAL_DIRECTIONS: dict[str, Direction] = {"loss": "down", "accuracy": "up"}


class MetricNames(dict[str, str | None]):
    """Maps a source's columns to metric names: the user's names from --rename, or else the default names. A column that
    is not a gauge maps to None. Columns are added when they are first looked up."""

    def __init__(self, renames: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.renames = dict(renames or {})
        self.step_column = next((name for name, new in self.renames.items() if new == STEP), None)
        """The column that the user chose for the step."""

    def __missing__(self, name: str) -> str | None:
        """Choose and store the metric name of a new column."""
        default = metric_name(name)
        new_name = self.renames.get(name) or (self.renames.get(default) if default else None)
        if default in self.renames.values():
            default = None  # the user renamed another column to this name
        self[name] = None if new_name == STEP else new_name or default
        return self[name]

    def check(self, source: object) -> None:
        """Raise ConfigError if `source`, which must be fully read, lacks a column that should be renamed."""
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


def metric_name(name: str) -> str | None:
    """Return the default metric name for a column, or None if the column is not a gauge."""
    short_name = name.removeprefix("train/")
    # Names that start with "_" are W&B's own columns. "train/train_" marks a total over the whole run.
    if not short_name or short_name in _COUNTERS or name.startswith(("_", "train/train_")):
        return None
    for prefix in _HELD_OUT_PREFIXES:
        if short_name.startswith(prefix) and len(short_name) > len(prefix):
            return "eval/" + short_name.removeprefix(prefix)
    return _ALIASES.get(short_name, short_name)


def metric_spec(name: str) -> MetricSpec:
    """Derive from a metric's name which direction is better, and whether the metric is held out."""
    last_part = name.rsplit("/", 1)[-1]
    if name.startswith("eval/") and last_part not in _SPEED_METRICS:
        better = _EVAL_DIRECTIONS.get(last_part, "neither")
        return MetricSpec(name=name, better=better, held_out=True)
    return MetricSpec(name=name, better=_DIRECTIONS.get(name, "neither"))

"""Logged figures as measurements: named as `attach` names them, numbers only, one row per step.

Names: `train/loss`, `train_loss` → `loss`; `eval_loss`, `val/loss` → `eval/loss`; `lr` → `learning_rate`. What counts
(step, epoch, tokens so far) or sums a whole training up is not a gauge, and left out. What a person renames goes before
all of that, by its name in the source or by the name that it would have got.
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
TWICE = "values of a metric that its row had already"

STEP = "step"
STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step", "step", "Step", "_step")
"""Where loggers keep the optimizer step, the surest first: W&B's own `_step` counts calls of its logger."""
TIMES = ("_timestamp", "timestamp", "wall_time")
_COUNTERS = frozenset((*STEPS, *TIMES, "epoch", "num_tokens", "total_flos"))
_ALIASES = {"lr": "learning_rate", "train_loss": "loss"}
_HELD_OUT = ("eval/", "eval_", "val/", "val_", "validation/")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TIMINGS = ("runtime", "samples_per_second", "steps_per_second")


class Row(NamedTuple):
    """What was measured at one step."""

    step: int
    metrics: dict[str, float]
    time: float | None


class Names(dict[str, str | None]):
    """What each column of a source is called in the run: as a person says (`--rename`), else as `attach` would; None:
    it is not a gauge. It holds the columns that were asked for."""

    def __init__(self, renamed: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.renamed = dict(renamed or {})
        self.step = next((name for name, called in self.renamed.items() if called == STEP), None)
        """The column that a person named as the step."""

    def __missing__(self, name: str) -> str | None:
        usual = named(name)
        asked = self.renamed.get(name) or (self.renamed.get(usual) if usual else None)
        if usual in self.renamed.values():
            usual = None  # a person gave its name to another column
        self[name] = found = None if asked == STEP else asked or usual
        return found

    def check(self, source: object) -> None:
        """Raises ConfigError where a column that was to be renamed was not there."""
        known = self.keys() | {called for name in self if (called := named(name))}
        for name, called in self.renamed.items():
            if name not in known:
                shown = [name for name in known if not name.startswith("_")]
                raise ConfigError(f"--rename {name}={called}: there is no {name} in {source}; {nearest(name, shown)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The known names that come closest, or some of them, as the end of an error."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"its columns are {', '.join(known[:8])}{', …' * (len(known) > 8)}" if known else "it has no columns"


def rows(logged: Iterable[Logged], skipped: Counter[str], names: Names) -> Iterator[Row]:
    """Calls that follow one another at one step become one row. What is not a number, or has no step, is counted in
    `skipped`; a value that was not measured (None) is absent; NaN and infinities stay."""
    waiting: Row | None = None
    for entry in logged:
        step = whole(entry.step)
        if step is None:
            skipped[NO_STEP] += 1
            for name in entry.values:
                _ = names[name]  # it was there, whatever becomes of the row
            continue
        metrics: dict[str, float] = {}
        for name, value in entry.values.items():
            called = names[name]
            if called is None or value is None:
                continue
            measured = value if type(value) is float else number(value)
            if measured is None:
                skipped[NO_NUMBER] += 1
            elif called in metrics:
                skipped[TWICE] += 1
            else:
                metrics[called] = measured
        if not metrics:
            continue
        if waiting is not None and waiting.step == step and waiting.metrics.keys().isdisjoint(metrics):
            waiting.metrics.update(metrics)
            continue
        if waiting is not None:
            yield waiting
        waiting = Row(step, metrics, entry.time)
    if waiting is not None:
        yield waiting


def named(name: str) -> str | None:
    """What `attach` would call this metric; None: it is not a gauge."""
    bare = name.removeprefix("train/")
    if not bare or bare in _COUNTERS or name.startswith("_") or (bare is not name and bare.startswith("train_")):
        return None
    for prefix in _HELD_OUT:
        if bare.startswith(prefix) and len(bare) > len(prefix):
            return "eval/" + bare.removeprefix(prefix)
    return _ALIASES.get(bare, bare)


def number(value: object) -> float | None:
    """None for what is not a number; a truth value is none."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """A step: 0 or more, without a fraction; else None."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found.is_integer() else None


def gauge(name: str) -> MetricSpec:
    """What can be said of a metric by its name alone."""
    last = name.rsplit("/", 1)[-1]
    if name.startswith("eval/") and last not in _TIMINGS:
        return MetricSpec(
            name=name, better="down" if last == "loss" else "up" if last == "accuracy" else "neither", held_out=True
        )
    return MetricSpec(name=name, better="down" if name == "loss" else "up" if name == "reward" else "neither")

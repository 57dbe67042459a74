"""Choose metric names for the columns of a source. By default they are the names that `oven_learner.attach` uses.

Examples: `train/loss` and `train_loss` → `loss`, `eval_loss` and `val/loss` → `eval/loss`, `lr` → `learning_rate`.
Counters (step, epoch, token count) are skipped because they are not gauges. `objectives` chooses the columns with the
loss and the reward. Names that the user chooses with --rename take precedence. --rename accepts a column's name and the
metric name made from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from oven_core.protocol.messages import MetricSpec
from oven_runs.metrics import name_tables

Direction: TypeAlias = Literal["up", "down", "neither"]

STEP_COLUMNS = (
    *("train/global_step", "trainer/global_step", "training/global_step", "global_step"),
    *("step", "Step", "_step"),
)
"""Names of W&B columns with the optimizer step, most reliable first. W&B's `_step` counts calls to its logger."""
TIME_COLUMNS = ("_timestamp", "timestamp", "wall_time")
_HELD_OUT = re.compile(
    rf"({'|'.join(sorted(name_tables.HELD_OUT_PREFIXES, key=len, reverse=True))})(?:_?\d+)?(?:'s)?[/_ .:-]+(?=.)|tel$",
    re.IGNORECASE,
)
_HELD_OUT_CAMEL = re.compile(r"([Ee]val|[Vv]al(?:id(?:ation)?)?|[Tt]est)(?=[A-Z])")
"""A prefix without a separator, as in `valLoss`."""
_HELD_OUT_END = re.compile(r"[/_ -](eval|val|validation|valid|test)$", re.IGNORECASE)
_YOLO_HELD_OUT = re.compile(r"metrics/(?=precision|recall|map)", re.IGNORECASE)
"""YOLO measures these metrics on its validation data."""
_TERMS = "|".join(name_tables.ALGORITHM_TERMS)
_ALGORITHM_LOSS = re.compile(
    rf"((^|(?<!cross)_)({_TERMS})_(function_)?loss(es)?|(^|_)loss(es)?_({_TERMS})(_function)?)(_(mean|avg|step|epoch))*$"
)
_MAIN_METRICS = ("reward", "loss", "eval/accuracy", "eval/loss")
"""The first metrics in an announcement. Agents judge a run by the first held-out metric."""
_ALIASES = {alias: (metric, rank) for metric, names in name_tables.ALIASES.items() for rank, alias in enumerate(names)}


class HeldOut(NamedTuple):
    """A held-out column's name in two parts."""

    prefix: str
    rest: str


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return a name for comparisons: lower-case words joined by underscores. `trainLoss` and `Train Loss` are equal."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name.replace("'s", ""))
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


@lru_cache(maxsize=4096)
def core(name: str) -> str:
    """Return the canonical name without the words that mark metrics of the training data."""
    return "_".join(word for word in canonical(name).split("_") if word not in name_tables.TRAINING_WORDS) or "train"


@lru_cache(maxsize=4096)
def is_counter(name: str) -> bool:
    """Whether the column is not a gauge. Names that start with "_" are W&B's own columns."""
    # "train/train_" marks W&B's totals over the whole run.
    return (
        not name.strip()
        or name.startswith(("_", "train/train_"))
        or canonical(name.removeprefix("train/")) in name_tables.NOT_GAUGES
    )


@lru_cache(maxsize=4096)
def held_out(name: str) -> HeldOut | None:
    """Split the name of a held-out column, or return None if the column is not held out."""
    name = name.strip()
    if match := _YOLO_HELD_OUT.match(name):
        return HeldOut("val", name[match.end() :])
    for start in {0, name.rfind("/") + 1}:
        if match := _HELD_OUT.match(name, start) or _HELD_OUT_CAMEL.match(name, start):
            prefix, rest = (match[1] or "val").lower(), name[match.end() :] or "loss"
            if _is_held_out(prefix, rest):
                return HeldOut(prefix, rest)
    if match := _HELD_OUT_END.search(name):
        prefix, rest = match[1].lower(), name[: match.start()]
        if _is_held_out(prefix, rest):
            return HeldOut(prefix, rest)
    return None


def mark_held_out(row: Mapping[str, object]) -> Mapping[str, object]:
    """Return a row whose names say that its measurements are held out if the row has a column such as `split` that says
    so."""
    for column, value in row.items():
        if isinstance(value, str) and canonical(column) in name_tables.SPLIT_COLUMNS:
            if canonical(value) in name_tables.HELD_OUT_PREFIXES:
                return {name if is_counter(name) or held_out(name) else f"val_{name}": row[name] for name in row}
            break
    return row


def _is_held_out(prefix: str, rest: str) -> bool:
    return prefix not in name_tables.AMBIGUOUS_PREFIXES or _direction_of_part(rest) != "neither"


@lru_cache(maxsize=4096)
def direction(name: str) -> Direction:
    """Return which values of a metric are better, by the last words of its name."""
    if is_algorithm_loss(name):
        return "neither"
    words = [word for word in re.split(r"_|(?<=[a-z])(?=\d)", canonical(name)) if word]
    while words:
        for word in ("".join(words[-2:]), words[-1]):
            if word in name_tables.UP:
                return "up"
            if word in name_tables.DOWN:
                return "down"
        if words.pop() not in name_tables.QUALIFIERS:
            break
    return "neither"


def _direction_of_part(name: str) -> Direction:
    """Return the direction of a name whose metric need not come last, such as `test_score/gsm8k`."""
    parts = name.split("/")
    if canonical(parts[-1]).endswith(name_tables.STATISTICS):
        return "neither"
    directions = [direction(part) for part in reversed(parts)]
    return next((better for better in directions if better != "neither"), "neither")


def is_algorithm_loss(name: str) -> bool:
    """Whether the column is a loss of an RL algorithm, such as a policy loss."""
    return _ALGORITHM_LOSS.search(canonical(name)) is not None


def alias_of(name: str) -> tuple[str, int] | None:
    """Return the metric that a column may have the values of, and the rank of the column among such columns."""
    if alias := _ALIASES.get(core(name)):
        return alias
    group, _, last_part = name.partition("/")
    if last_part and "/" not in last_part and canonical(group) not in name_tables.OTHER_MODELS:
        alias = None if core(last_part) in name_tables.WEAK_NORMS else _ALIASES.get(core(last_part))
        return (alias[0], alias[1] + len(_ALIASES)) if alias and alias[0] in ("learning_rate", "grad_norm") else None
    return None


def metric_name(name: str) -> str | None:
    """Return the default metric name for a column, or None if the column is not a gauge."""
    if is_counter(name):
        return None
    if parts := held_out(name):
        return "eval/" + ("loss" if canonical(parts.rest) == "loss" else join_words(parts.rest))
    if core(name) == "loss":
        return "loss"
    alias = alias_of(name)
    return alias[0] if alias else join_words(name.strip().removeprefix("train/"))


def join_words(name: str) -> str:
    """Return the name without white space."""
    return "_".join(name.split())


def metric_spec(name: str) -> MetricSpec:
    """Derive from a metric's name which direction is better, and whether the metric is held out."""
    if not name.startswith("eval/") or name.endswith(name_tables.SPEED_METRICS):
        return MetricSpec(name=name, better=direction(name))
    return MetricSpec(name=name, better=_direction_of_part(name.removeprefix("eval/")), held_out=True)


def announcement_order(name: str) -> tuple[int, bool, str]:
    """Return a key that sorts metrics for an announcement: the main ones, the other held-out ones, the rest."""
    rank = _MAIN_METRICS.index(name) if name in _MAIN_METRICS else len(_MAIN_METRICS)
    return rank, not metric_spec(name).held_out, name


def suggest_columns(name: str, columns: Iterable[str]) -> str:
    """Return a hint for an error message: the columns with similar names, or the first columns if there are none."""
    columns = sorted(columns)
    matches = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    more = ", …" if len(columns) > 8 else ""
    return f"its columns are {', '.join(columns[:8])}{more}" if columns else "it has no columns"

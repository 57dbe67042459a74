"""Name a source's metrics: find the loss, the reward and the held-out metrics, and apply the user's renames."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from oven_core.errors import ConfigError
from oven_runs.metrics.metric_names import (
    alias_of,
    canonical,
    core,
    direction,
    held_out,
    is_algorithm_loss,
    join_words,
    metric_name,
    suggest_columns,
)
from oven_runs.metrics.name_tables import (
    EPOCHS,
    HELD_OUT_PREFIXES,
    LOSSES,
    REWARDS,
    RL_SIGNS,
    STATISTICS,
    WEAK_KLS,
    WEAK_NORMS,
    WEAK_REWARDS,
)

STEP = "step"
"""Target of the rename that chooses the step column."""
_REWARD_NOUN = re.compile(r"(^|_)(rewards?|returns?|rew)(_|$)")
_REWARD_WORDS = re.compile(
    r"(mean|avg|average|episode|episodic|ep|rollout|train|total|env|\d+|per|running|last|the|_)*"
)
"""Words in a reward's name that do not make it a component of the reward, such as in `avg_reward_last_100`."""
_NOT_LOSSES = frozenset((*STATISTICS, "rate", "lr", "norm", "coef", "fn"))
"""Last words of columns that are about a loss, but are not one."""
_MIN_SHARE = 0.05
"""Minimum number of values of the loss, as a share of those of the most frequent loss."""


class MetricNames:
    """The columns of a source and their metric names. Call `choose` after all columns were passed to `is_gauge`."""

    def __init__(self, renames: Mapping[str, str] = MappingProxyType({})) -> None:
        self.renames = dict(renames)
        self.step_column = next((name for name, new in self.renames.items() if new == STEP), None)
        """The column that the user chose for the step. Once the source is opened, the column with the steps."""
        self.columns: dict[str, bool] = {}
        """Whether each column is a gauge, in the order of their first values."""
        self.sources: dict[str, str] = {}
        """The columns by metric name."""
        self._epochs: dict[str, bool] = {}

    def is_gauge(self, column: str) -> bool:
        """Return whether the column is a metric, and remember the column."""
        if column not in self.columns:
            default = metric_name(column)
            target = self.renames.get(column) or (self.renames.get(default) if default else None)
            is_replaced = column in self.renames.values() and column not in self.renames
            self.columns[column] = target != STEP if target else default is not None and not is_replaced
        return self.columns[column]

    def is_epoch(self, column: str) -> bool:
        """Return whether the column counts passes over the training data, and not the run's steps."""
        if column not in self._epochs:
            is_named = canonical(column) in EPOCHS and column not in self.renames
            self._epochs[column] = is_named and column != self.step_column
        return self._epochs[column]

    def choose(self, counts: Mapping[str, int], negative: Collection[str] = ()) -> dict[str, str]:
        """Return the metric names of the columns. `counts` has the number of values of each gauge, and `negative` the
        gauges with values below 0. Names are unique: if two columns would have the same name, the less reliable one
        keeps the name from the source."""
        columns = [column for column in self.columns if column in counts]
        names: dict[str, str] = {}
        for column in columns:
            target = self.renames.get(column) or self.renames.get(metric_name(column) or "")
            if target:
                names.setdefault(target, column)
        free = [column for column in columns if column not in names.values()]
        for metric, column in _objectives(free, counts, names).items():
            names.setdefault(metric, column)
        named_columns = set(names.values())
        for column in sorted(free, key=_reliability):
            if column in named_columns:
                continue
            default = metric_name(column) or column
            is_objective = default in ("loss", "reward", "eval/loss")
            keeps_default = (
                default not in names and not is_objective and not self._may_be_another(column, negative, names)
            )
            name = default if keeps_default else _own_name(column)
            while name in names:
                name += "_"
            names[name] = column
        self.sources = names
        return {column: metric for metric, column in names.items()}

    def _may_be_another(self, column: str, negative: Collection[str], names: Mapping[str, str]) -> bool:
        """Return whether a column such as `norm` or `KL` may have another meaning than its usual one. A norm is the
        gradient's if it is the only one, and never negative. A KL is a policy's if there is a reward."""
        name = core(column)
        if name in WEAK_NORMS:
            gauges = [canonical(gauge).split("_") for gauge, is_gauge in self.columns.items() if is_gauge]
            return column in negative or sum("norm" in words for words in gauges) > 1
        return name in WEAK_KLS and "reward" not in names

    def check(self, source: object) -> None:
        """Raise ConfigError if `source`, which must be fully read, lacks a column that should be renamed."""
        columns = self.columns.keys() | {metric for name in self.columns if (metric := metric_name(name))}
        for name, new in self.renames.items():
            if name not in columns:
                hint = suggest_columns(name, [column for column in columns if not column.startswith("_")])
                raise ConfigError(f"--rename {name}={new}: {source} has no column {name}; {hint}")


def _own_name(column: str) -> str:
    return f"eval/{join_words(column)}" if held_out(column) else join_words(column)


def _reliability(column: str) -> tuple[int, int]:
    """Return a key that sorts columns by how sure their default names are."""
    if parts := held_out(column):
        return HELD_OUT_PREFIXES.index(parts.prefix), 0
    alias = alias_of(column)
    return 0, alias[1] if alias else 0


def _objectives(columns: list[str], counts: Mapping[str, int], names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the reward, the loss and the held-out loss, as far as they exist and `names` lacks them."""
    training = [column for column in columns if held_out(column) is None]
    chosen: dict[str, str | None] = {}
    has_loss, has_reward = "loss" in names, "reward" in names
    if not has_reward and (reward := _find_reward(training)):
        chosen["reward"], has_reward = reward, True
    is_rl = any(is_algorithm_loss(column) or canonical(column).endswith(RL_SIGNS) for column in columns)
    if not has_loss and not (has_reward and is_rl) and (loss := _find_loss(training, counts)):
        chosen["loss"], has_loss = loss, True
    if not has_loss and not has_reward:
        chosen["reward"] = _first_listed({column: core(column) for column in training}, WEAK_REWARDS)
    if "eval/loss" not in names:
        held_out_columns = [column for column in columns if held_out(column)]
        chosen["eval/loss"] = _find_held_out_loss(held_out_columns, names.get("loss") or chosen.get("loss"))
    return {metric: column for metric, column in chosen.items() if column is not None}


def _find_reward(columns: list[str]) -> str | None:
    """Return the column with the reward. Components of a reward, such as `rewards/format`, are not the reward."""
    listed = _first_listed({column: core(column) for column in columns}, REWARDS)
    rewards = (column for column in columns if _REWARD_NOUN.search(canonical(column)))
    return listed or next(
        (column for column in rewards if _REWARD_WORDS.fullmatch(_REWARD_NOUN.sub("_", canonical(column)))), None
    )


def _find_loss(columns: list[str], counts: Mapping[str, int]) -> str | None:
    """Return the column with the total loss, or the first loss if there is no total."""
    losses = {column: core(column) for column in columns if _is_loss(column)}
    if not losses:  # e.g. `train-rmse` of a library without a column named loss
        return next((column for column in columns if "train" in column and direction(column) == "down"), None)
    min_count = _MIN_SHARE * max(counts[column] for column in losses)
    frequent = [column for column in losses if counts[column] >= min_count]
    shortest_first = sorted(frequent, key=lambda column: (column != "loss", len(column)))  # before `train_loss`
    return _first_listed({column: losses[column] for column in shortest_first}, LOSSES) or next(iter(frequent), None)


def _is_loss(column: str) -> bool:
    words = canonical(column).split("_")
    is_named_loss = not {"loss", "losses"}.isdisjoint(words) and words[-1] not in _NOT_LOSSES
    return not is_algorithm_loss(column) and (is_named_loss or core(column) in LOSSES)


def _find_held_out_loss(columns: list[str], loss: str | None) -> str | None:
    """Return the held-out column that measures the same as the loss."""
    rests = {column: core(parts.rest) for column in sorted(columns, key=_reliability) if (parts := held_out(column))}
    counterpart = next((column for column, rest in rests.items() if loss and rest == core(loss)), None)
    return _first_listed(rests, LOSSES) or counterpart


def _first_listed(columns: Mapping[str, str], listed: tuple[str, ...]) -> str | None:
    """Return the column whose core name comes first in the list, or the first of those. `columns` has core names."""
    ranks = {name: rank for rank, name in enumerate(listed)}
    matches = [column for column, name in columns.items() if name in ranks]
    return min(matches, key=lambda column: ranks[columns[column]], default=None)

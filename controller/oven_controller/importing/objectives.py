"""Name a source's metrics: find the loss, the reward and the held-out metrics, and apply the user's renames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from oven_controller.importing.metric_names import (
    ALIASES,
    HELD_OUT_ORDER,
    canonical,
    held_out,
    is_algorithm_loss,
    is_counter,
    metric_name,
    suggest_columns,
)
from oven_core.errors import ConfigError

STEP = "step"
"""Target of the rename that chooses the step column."""
_LOSSES = (
    *("loss", "train_loss", "training_loss", "loss_train", "loss_training", "total_loss", "loss_total", "train_total_loss"),
    *("train_loss_total", "train_loss_step", "loss_step", "train_loss_epoch", "loss_epoch", "mean_loss", "train_mean_loss"),
    *("loss_mean", "avg_loss", "average_loss", "train_avg_loss", "train_average_loss", "avg_train_loss", "epoch_loss"),
    *("mean_train_loss", "loss_avg", "running_loss", "batch_loss", "lm_loss", "train_lm_loss", "train_ce_loss", "ce_loss"),
    *("train_cross_entropy_loss", "train_nll", "train_nll_loss", "nll", "nll_loss", "cross_entropy", "trl", "losses"),
    *("train_losses", "loss_value", "current_loss", "sft_loss", "train_batch_loss", "cost"),
)  # fmt: skip
"""Canonical names of columns with the loss that the training minimizes, most reliable first."""
_REWARDS = (
    *("reward", "train_reward", "rollout_ep_rew_mean", "critic_score_mean", "critic_rewards_mean", "ep_rew_mean"),
    *("mean_reward", "reward_mean", "train_mean_reward", "train_reward_mean", "avg_reward", "average_reward"),
    *("episode_reward_mean", "env_runners_episode_return_mean", "env_runners_episode_reward_mean", "episode_reward"),
    *("mean_episode_reward", "mean_episode_rewards", "rewards_mean_episodes", "train_episode_reward", "episodic_return"),
    *("charts_episodic_return", "episode_return", "episode_returns", "train_return", "mean_return", "return_mean"),
    *("average_return", "avg_return", "ep_ret", "average_ep_ret", "eprewmean", "ep_reward", "ep_return", "total_reward"),
    *("mean_100_episode_reward", "mean_100ep_reward", "rewards_mean", "rewards", "return", "returns", "score", "mean_score"),
    *("avg_score", "average_score", "r", "rm", "reward_score", "train_rewards", "train_mean_episode_reward"),
)  # fmt: skip
"""Canonical names of columns with the reward that the training maximizes, most reliable first."""
_REWARD_WORDS = re.compile(
    r"(mean|avg|average|episode|episodic|ep|rollout|train|total|env|\d+|per|running|last|the|_)*"
)
"""Words in a reward's name that do not make it a component of the reward, such as in `avg_reward_last_100`."""
_RL_LOOPS = ("explained_variance", "exploration_rate", "n_updates", "ep_len_mean", "clip_fraction", "std")
"""Ends of columns that RL libraries log next to a loss. Their loss does not measure how good the policy is."""
_MIN_SHARE = 0.05
"""Minimum number of values of the loss, as a share of those of the most frequent loss."""


class MetricNames:
    """The columns of a source and their metric names. Call `choose` after all columns were passed to `is_gauge`."""

    def __init__(self, renames: Mapping[str, str] = MappingProxyType({})) -> None:
        self.renames = dict(renames)
        self.step_column = next((name for name, new in self.renames.items() if new == STEP), None)
        """The column that the user chose for the step."""
        self.columns: dict[str, bool] = {}
        """Whether each column is a gauge, in the order of their first values."""
        self.sources: dict[str, str] = {}
        """The columns by metric name."""

    def is_gauge(self, column: str) -> bool:
        """Return whether the column is a metric, and remember the column."""
        if column not in self.columns:
            default = metric_name(column)
            target = self.renames.get(column) or (self.renames.get(default) if default else None)
            is_replaced = column in self.renames.values() and column not in self.renames
            self.columns[column] = target != STEP if target else default is not None and not is_replaced
        return self.columns[column]

    def choose(self, counts: Mapping[str, int]) -> dict[str, str]:
        """Return the metric names of the columns. `counts` has the number of values of each gauge. Names are unique: if
        two columns would have the same name, the less reliable one keeps the name from the source."""
        columns = [column for column in self.columns if column in counts]
        names: dict[str, str] = {}
        for column in columns:
            target = self.renames.get(column) or self.renames.get(metric_name(column) or "")
            if target:
                names.setdefault(target, column)
        free = [column for column in columns if column not in names.values()]
        for metric, column in _objectives(free, counts, names).items():
            names.setdefault(metric, column)
        taken = set(names.values())
        for column in sorted(free, key=_reliability):
            if column in taken:
                continue
            default = metric_name(column) or column
            keeps_default = default not in names and default not in ("loss", "reward", "eval/loss")
            names.setdefault(default if keeps_default else _own_name(column), column)
        self.sources = names
        return {column: metric for metric, column in names.items()}

    def check(self, source: object) -> None:
        """Raise ConfigError if `source`, which must be fully read, lacks a column that should be renamed."""
        columns = self.columns.keys() | {metric for name in self.columns if (metric := metric_name(name))}
        for name, new in self.renames.items():
            if name not in columns:
                hint = suggest_columns(name, [column for column in columns if not column.startswith("_")])
                raise ConfigError(f"--rename {name}={new}: {source} has no column {name}; {hint}")


def _own_name(column: str) -> str:
    own = re.sub(r"\s+", "_", column.strip())
    return f"eval/{own}" if held_out(column) else own


def _reliability(column: str) -> tuple[int, int]:
    parts = held_out(column)
    if parts:
        return (HELD_OUT_ORDER.index(parts.prefix) if parts.prefix in HELD_OUT_ORDER else len(HELD_OUT_ORDER), 0)
    return 0, ALIASES.get(canonical(column.removeprefix("train/")), ("", 99))[1]


def _objectives(columns: list[str], counts: Mapping[str, int], names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the reward, the loss and the held-out loss, as far as they exist and `names` lacks them."""
    training = [column for column in columns if held_out(column) is None]
    chosen: dict[str, str] = {}
    reward = None if "reward" in names else _find_reward(training)
    if reward:
        chosen["reward"] = reward
    has_reward = "reward" in names or reward is not None
    is_rl = has_reward and any(is_algorithm_loss(column) or canonical(column).endswith(_RL_LOOPS) for column in columns)
    loss = None if "loss" in names or is_rl else _find_loss(training, counts)
    if loss:
        chosen["loss"] = loss
    if "eval/loss" not in names:
        loss_column = loss or names.get("loss")
        held_out_loss = _find_held_out_loss([column for column in columns if held_out(column)], loss_column)
        if held_out_loss:
            chosen["eval/loss"] = held_out_loss
    return chosen


def _find_reward(columns: list[str]) -> str | None:
    """Return the column with the reward. Components of a reward, such as `rewards/format`, are not the reward."""
    match = _first_listed(columns, _REWARDS)
    if match:
        return match
    words = (re.compile(r"(^|_)(rewards?|returns?|rew)(_|$)"), _REWARD_WORDS)
    rewards = [name for name in columns if words[0].search(canonical(name))]
    return next((name for name in rewards if words[1].fullmatch(words[0].sub("_", canonical(name)))), None)


def _find_loss(columns: list[str], counts: Mapping[str, int]) -> str | None:
    """Return the column with the total loss, or the first loss if there is no total."""
    losses = [name for name in columns if _is_loss(name)]
    most = max((counts[name] for name in losses), default=0)
    frequent = [name for name in losses if counts[name] >= _MIN_SHARE * most]
    return _first_listed(frequent, _LOSSES) or next(iter(frequent), None)


def _is_loss(name: str) -> bool:
    key = canonical(name)
    if is_counter(name) or is_algorithm_loss(name):
        return False
    words = key.split("_")
    return key in _LOSSES or (
        any(word in ("loss", "losses") for word in words)
        and not any(word in ("scale", "std", "var", "weight", "min", "max", "mask", "time", "ratio") for word in words)
    )


def _find_held_out_loss(columns: list[str], loss: str | None) -> str | None:
    """Return the held-out column that measures the same as the loss."""
    rests = {name: _core(parts.rest) for name in sorted(columns, key=_reliability) if (parts := held_out(name))}
    if match := _first_listed(rests, _LOSSES, rests):
        return match
    if loss is None:
        return None
    return next((name for name, rest in rests.items() if rest == _core(loss)), None)


def _core(name: str) -> str:
    return re.sub(r"^train(ing)?_|_train$", "", canonical(name))


def _first_listed(
    columns: Iterable[str], listed: tuple[str, ...], keys: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return the column whose canonical name comes first in the list."""
    ranks = {name: rank for rank, name in enumerate(listed)}
    matches = [column for column in columns if keys.get(column, canonical(column)) in ranks]
    return min(matches, key=lambda column: ranks[keys.get(column, canonical(column))], default=None)

"""Choose metric names for the columns of a source. By default they are the names that `oven_learner.attach` uses.

Examples: `train/loss` and `train_loss` → `loss`, `eval_loss` and `val/loss` → `eval/loss`, `lr` → `learning_rate`.
Counters (step, epoch, token count) are skipped because they are not gauges. `objectives` chooses the columns with the
loss and the reward. Names that the user chooses with --rename take precedence. --rename accepts a column's name and the
metric name made from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from oven_core.protocol.messages import MetricSpec

Direction: TypeAlias = Literal["up", "down", "neither"]

_GLOBAL_STEPS = ("train/global_step", "trainer/global_step", "training/global_step", "global_step")
STEP_COLUMNS = (*_GLOBAL_STEPS, "step", "Step", "_step")
"""Names of columns with the optimizer step, most reliable first. W&B's own `_step` counts calls to its logger."""
TIME_COLUMNS = ("_timestamp", "timestamp", "wall_time")
_COUNTERS = frozenset((
    *(re.sub(r"\W+", "_", name).lower() for name in (*STEP_COLUMNS, *TIME_COLUMNS)),
    *("epoch", "epochs", "num_tokens", "total_flos", "total_tokens", "tokens_seen", "consumed_samples", "iter", "iters"),
    *("iteration", "iterations", "itr", "current_step", "current_steps", "total_step", "total_steps", "max_steps", "steps"),
    *("total_epochs", "max_epochs", "total_iters", "max_iters", "percentage", "progress", "eta", "eta_seconds", "date"),
    *("total_timesteps", "time_total_timesteps", "num_timesteps", "timesteps", "timestep", "timesteps_total", "env_steps"),
    *("time_iterations", "time_episodes", "episode", "episodes", "update", "updates", "n_updates", "num_updates", "batch"),
    *("batch_idx", "time_time_elapsed", "time_elapsed", "elapsed_time", "remaining_time", "datetime", "index", "seed"),
    *("hp_metric",),
))  # fmt: skip
"""Canonical names of columns that count, or that tell the time."""
_METRIC_ALIASES = {
    "learning_rate": (
        *("learning_rate", "lr", "actor_lr", "train_lr", "train_learning_rate", "current_lr", "base_lr", "lr_pg0", "lr_0"),
        *("x_lr0", "lr0", "learning_rate_0", "optim_lr", "optimizer_lr", "optim_learning_rate_group0", "act_lr"),
    ),
    "grad_norm": (
        *("grad_norm", "gradient_norm", "gnorm", "actor_grad_norm", "grad_norm_total", "total_grad_norm", "norm"),
        *("train_grad_norm", "optim_total_grad_norm", "global_grad_norm", "total_norm", "grad_2_0_norm_total"),
    ),
    "entropy": ("entropy", "actor_entropy", "actor_entropy_loss", "policy_entropy", "mean_entropy"),
    "kl": ("kl", "critic_kl", "actor_kl", "mean_kl"),
    "completions/mean_length": ("completions_mean_length", "response_length_mean"),
    "completions/clipped_ratio": ("completions_clipped_ratio", "response_length_clip_ratio"),
}  # fmt: skip
"""For each metric, the canonical names of columns that may have its values, most reliable first."""
ALIASES = {alias: (metric, rank) for metric, names in _METRIC_ALIASES.items() for rank, alias in enumerate(names)}
_LR_GROUP = re.compile(r"(train_)?(lr|learning_rate)_[a-z]*(_pg1?)?|lr_group_?0")
"""Learning rates of optimizers or of the first parameter group, as in `lr-AdamW/pg1`."""
_HELD_OUT = re.compile(
    r"(eval|evaluation|val|validation|valid|test|testing|dev|held_?out|holdout)(?:_?\d+)?(?:'s)?[/_ .:-]+(?=.)|tel$",
    re.IGNORECASE,
)
_HELD_OUT_END = re.compile(r"[/_ -](eval|val|validation|valid|test)$", re.IGNORECASE)
_YOLO_HELD_OUT = re.compile(r"metrics/(?=precision|recall|map)", re.IGNORECASE)
"""YOLO measures these metrics on its validation data."""
_AMBIGUOUS = ("valid", "test", "testing", "dev")
"""Words that mark held-out metrics only if the rest of the name is that of a metric. `valid_actions` is not one."""
HELD_OUT_ORDER = ("eval", "evaluation", "val", "validation", "valid", "test")
"""Prefixes of held-out metrics, in order of preference."""
_MAIN_METRICS = ("eval/accuracy", "eval/loss")
_SPEED_METRICS = ("runtime", "samples_per_second", "steps_per_second")
_UP = frozenset((
    *("acc", "accuracy", "f1", "map", "bleu", "rouge", "rouge1", "rouge2", "rougel", "rougelsum", "auc", "auroc", "auprc"),
    *("dice", "iou", "miou", "precision", "recall", "reward", "rewards", "rew", "return", "score", "psnr", "ssim", "chrf"),
    *("success", "mcc", "r2", "pearson", "spearman", "spearmanr", "meteor", "ndcg", "mrr", "specificity", "sensitivity"),
))  # fmt: skip
_DOWN = frozenset((
    *("loss", "wer", "cer", "ppl", "perplexity", "mse", "mae", "rmse", "mape", "error", "nll", "bpb", "bpc", "fid"),
    *("logloss", "mlogloss", "brier", "ece", "crossentropy", "trl", "tel"),
))  # fmt: skip
_QUALIFIERS = frozenset((
    *("macro", "micro", "weighted", "mean", "avg", "average", "step", "epoch", "total", "overall", "train", "b", "m", "p"),
    *("top", "score", "rate", "l", "lsum", "1", "2", "3", "5", "10", "50", "75", "95", "100", "binary", "ovr", "value"),
))  # fmt: skip
"""Words after a metric's name that do not change its direction. `std`, `min` and `max` are not among them."""
_STATISTICS = ("std", "min", "max", "var", "count", "time", "size", "ratio")
_ALGORITHM_LOSS = re.compile(
    r"(^|_)(value|values|vf|v|critic|policy|pg|pi|actor|entropy|q|qf|q1|q2|qf1|qf2|alpha|ent_coef|surrogate|surr|kl|aux"
    r"|policy_gradient|value_function|clip|ppo|temperature)_(function_)?(loss|losses)$|(^|_)loss_(pi|v|q|value|policy|entropy|"
    r"actor|critic|kl|surr|alpha)$"
)
"""Canonical names of losses that an RL algorithm minimizes. They do not measure how good the policy is."""


class HeldOut(NamedTuple):
    """A held-out column's name in two parts."""

    prefix: str
    rest: str


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return a name for comparisons: lower-case words joined by underscores. `trainLoss` and `Train Loss` are equal."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def is_counter(name: str) -> bool:
    """Whether the column is not a gauge. Names that start with "_" are W&B's own columns."""
    short_name = name.strip().removeprefix("train/")
    # "train/train_" marks W&B's totals over the whole run.
    return not short_name or name.startswith(("_", "train/train_")) or canonical(short_name) in _COUNTERS


@lru_cache(maxsize=4096)
def held_out(name: str) -> HeldOut | None:
    """Split the name of a held-out column, or return None if the column is not held out."""
    name = name.strip()
    if match := _YOLO_HELD_OUT.match(name):
        return HeldOut("val", name[match.end() :])
    last_segment = name.rfind("/") + 1
    for start in {0, last_segment}:
        match = _HELD_OUT.match(name, start)
        if match:
            word, rest = (match[1] or "val").lower(), name[match.end() :] or "loss"
            if word not in _AMBIGUOUS or _direction_of_part(rest) != "neither":
                return HeldOut(word, rest)
    if match := _HELD_OUT_END.search(name):
        rest = name[: match.start()]
        if match[1].lower() not in _AMBIGUOUS or direction(rest) != "neither":
            return HeldOut(match[1].lower(), rest)
    return None


@lru_cache(maxsize=4096)
def direction(name: str) -> Direction:
    """Return which values of a metric are better, by the last words of its name."""
    words = [word for word in re.split(r"_|(?<=[a-z])(?=\d)", canonical(name)) if word]
    if _ALGORITHM_LOSS.search(canonical(name)):
        return "neither"
    while words:
        pair = "".join(words[-2:])
        for word in (pair, words[-1]):
            if word in _UP:
                return "up"
            if word in _DOWN:
                return "down"
        if words.pop() not in _QUALIFIERS:
            break
    return "neither"


def _direction_of_part(name: str) -> Direction:
    """Return the direction of a name whose metric need not come last, such as `test_score/gsm8k`."""
    parts = name.split("/")
    if canonical(parts[-1]).endswith(_STATISTICS):
        return "neither"
    directions = [direction(part) for part in reversed(parts)]
    return next((better for better in directions if better != "neither"), "neither")


def is_algorithm_loss(name: str) -> bool:
    """Whether the column is a loss of an RL algorithm, such as a policy loss."""
    return _ALGORITHM_LOSS.search(canonical(name)) is not None


def metric_name(name: str) -> str | None:
    """Return the default metric name for a column, or None if the column is not a gauge."""
    if is_counter(name):
        return None
    if parts := held_out(name):
        rest = re.sub(r"\s+", "_", parts.rest)
        return "eval/" + ("loss" if canonical(rest) == "loss" else rest)
    short_name = re.sub(r"\s+", "_", name.strip().removeprefix("train/"))
    key = canonical(short_name)
    if key in ("train_loss", "loss"):
        return "loss"
    if key in ALIASES or _LR_GROUP.fullmatch(key):
        return ALIASES.get(key, ("learning_rate", 0))[0]
    return short_name


def metric_spec(name: str) -> MetricSpec:
    """Derive from a metric's name which direction is better, and whether the metric is held out."""
    last_part = name.rsplit("/", 1)[-1]
    if not name.startswith("eval/") or last_part.endswith(_SPEED_METRICS):
        return MetricSpec(name=name, better=direction(name))
    return MetricSpec(name=name, better=_direction_of_part(name.removeprefix("eval/")), held_out=True)


def announcement_order(name: str) -> tuple[int, str]:
    """Return a key that sorts metrics by name, after the held-out metrics that agents should judge a run by."""
    return _MAIN_METRICS.index(name) if name in _MAIN_METRICS else len(_MAIN_METRICS), name


def suggest_columns(name: str, columns: Iterable[str]) -> str:
    """Return a hint for an error message: the columns with similar names, or the first columns if there are none."""
    columns = sorted(columns)
    matches = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
    if matches:
        return f"did you mean {' or '.join(matches)}?"
    more = ", …" if len(columns) > 8 else ""
    return f"its columns are {', '.join(columns[:8])}{more}" if columns else "it has no columns"

"""What a batch of samples is worth: reward functions or a committee asked, and their answers checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.hf.hooks.missing_rewards import INFINITE, UNSCORED
from oven_learner.policies.policy import repeated
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.rule_members import RewardFunction

OF_SAMPLES = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="reward_std"),
    MetricSpec(name="frac_reward_zero_std", unit="share of groups without a gradient"),
    MetricSpec(name="entropy", unit="nats per step, estimated on the samples"),
    MetricSpec(name="completions/mean_length", unit="steps"),
    MetricSpec(name="clip_ratio/region_mean", unit="share of steps"),
)
KL = MetricSpec(name="kl", unit="nats per step, to the active teacher")
SKIPPED_GROUPS = MetricSpec(
    name="committee/skipped_groups", better="down", unit="groups of this batch without a reward"
)
SKIPPED_STEPS = MetricSpec(
    name="committee/skipped_steps", better="down", unit="1: no scored group, optimizer not stepped"
)


@dataclass(frozen=True)
class Scored:
    """One batch's. A group counts where each of its samples has a finite reward."""

    rewards: Tensor
    """(B,) float32, NaN where there is none."""
    metrics: dict[str, float]
    why: dict[str, int]
    """Why there is none → how often, where that is known."""


class Scoring:
    """Asks a Committee, or functions by name whose rewards are added up; a function that returns None or NaN for a
    sample has nothing to say of it. Functions are called as TRL calls them: with `prompts` (the conditions),
    `completions` (the samples' outputs) and further columns of conditions that are mappings with a "prompt"."""

    def __init__(self, rewards: Committee | Mapping[str, RewardFunction], group_size: int) -> None:
        if not isinstance(rewards, Committee) and not rewards:
            raise ConfigError("there are no rewards; give a Committee, or functions by name: {name: function}")
        self._rewards, self._group_size = rewards, group_size
        self.committee = rewards if isinstance(rewards, Committee) else None
        self.columns: dict[str, Tensor] = {}
        """What each function gave of the batch before, (B,); empty with a committee."""
        if self.committee is not None:
            if self.committee.ahead:
                raise ConfigError("committee.ahead: 1 is for a GRPOTrainer, and this is a PolicyTrainer: set it to 0")
            self.committee.group_size = group_size

    def announce(self, actuators: Actuators) -> None:
        """`reward.weights`, where a committee has something to weigh."""
        if self.committee is not None:
            self.committee.announce(actuators)

    def announced(self) -> tuple[MetricSpec, ...]:
        """The metrics of each batch, and whether its step was skipped."""
        if self.committee is not None:
            return (UNSCORED, INFINITE, *self.committee.announced())
        own = (MetricSpec(name=f"rewards/{name}/mean") for name in self._functions)
        return (UNSCORED, INFINITE, SKIPPED_GROUPS, SKIPPED_STEPS, *own)

    def __call__(self, conditions: Sequence[Any], outputs: Sequence[Any], step: int) -> Scored:
        """Raises ConfigError for a function that returns another number of rewards than samples."""
        asked = self._asked(conditions, outputs, step)
        if self.committee is not None:
            metrics: dict[str, float] = {}
            given = self.committee(**asked, log_metric=metrics.__setitem__)
            rewards = torch.tensor([math.nan if value is None else float(value) for value in given])
            why = dict(self.committee.last.abstained)
        else:
            rewards, metrics, why = self._summed(asked, len(outputs))
        counts = {UNSCORED.name: float(rewards.isnan().sum()), INFINITE.name: float(rewards.isinf().sum())}
        skipped = (~rewards.view(-1, self._group_size).isfinite()).any(1).sum()
        return Scored(rewards, {**metrics, **counts, SKIPPED_GROUPS.name: float(skipped)}, why)

    @property
    def _functions(self) -> Mapping[str, RewardFunction]:
        assert not isinstance(self._rewards, Committee)
        return self._rewards

    def _asked(self, conditions: Sequence[Any], outputs: Sequence[Any], step: int) -> dict[str, Any]:
        rows = repeated(conditions, self._group_size)
        columns = set.intersection(*(set(row) if isinstance(row, Mapping) else set() for row in rows)) - {"prompt"}
        return {
            **{name: [row[name] for row in rows] for name in sorted(columns)},
            "prompts": [prompt_of(row) for row in rows],
            "completions": list(outputs),
            "trainer_state": SimpleNamespace(global_step=step),
        }

    def _summed(self, asked: Mapping[str, Any], rows: int) -> tuple[Tensor, dict[str, float], dict[str, int]]:
        metrics: dict[str, float] = {}
        columns = []
        for name, function in self._functions.items():
            given = list(function(**asked, log_metric=metrics.__setitem__))
            if len(given) != rows:
                raise ConfigError(
                    f"the reward {name!r} returned {len(given)} numbers for {rows} samples; give one each"
                )
            column = torch.tensor([math.nan if value is None else float(value) for value in given])
            if not bool(column.isnan().all()):
                metrics[f"rewards/{name}/mean"] = float(column.nanmean())
            columns.append(column)
        self.columns = dict(zip(self._functions, columns, strict=True))
        table = torch.stack(columns, 1)  # (B, functions)
        rewards = table.nansum(1).masked_fill(table.isnan().all(1), math.nan)
        bad = int((~rewards.isfinite()).sum())
        return rewards, metrics, {"no finite reward": bad} if bad else {}


def prompt_of(condition: Any) -> Any:
    """What the policy is given of a condition."""
    return condition["prompt"] if isinstance(condition, Mapping) and "prompt" in condition else condition

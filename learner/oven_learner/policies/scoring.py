"""Scores the samples of a PolicyTrainer with reward functions or a committee, and publishes some groups for the
monitor."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.client.loop_client import LoopClient
from oven_learner.completions.sample_message import MemberVerdict, Sample
from oven_learner.completions.sampling import SampleNumbers
from oven_learner.hf.hooks.step_hooks import INFINITE, UNSCORED
from oven_learner.policies.policy import repeat_conditions
from oven_learner.rewards.committee import SKIPPED_STEPS, Committee
from oven_learner.rewards.verdicts import RewardFunction

log = logging.getLogger("oven.learner")

SAMPLE_METRICS = (
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
    name="committee/skipped_groups", better="down", unit="groups in this batch without a reward"
)


@dataclass(frozen=True)
class BatchScores:
    """The scores of one batch. A group counts if all its samples have finite rewards."""

    rewards: Tensor
    """Rewards, (B,) float32. NaN for a missing reward."""
    metrics: dict[str, float]
    missing_reasons: dict[str, int]
    """Number of missing rewards for each known reason."""


class Scoring:
    """The rewards of a trainer: a Committee, or the sum of named reward functions. A function abstains by returning
    None or NaN. Functions have TRL's signature, where `prompts` are the conditions and `completions` the samples'
    outputs. If the conditions are mappings with a "prompt", their other entries are passed by name."""

    def __init__(self, rewards: Committee | Mapping[str, RewardFunction], group_size: int) -> None:
        if not isinstance(rewards, Committee) and not rewards:
            raise ConfigError("there are no rewards; pass a Committee, or functions by name, {name: function}")
        self._group_size = group_size
        self.committee = rewards if isinstance(rewards, Committee) else None
        self._functions = {} if isinstance(rewards, Committee) else rewards
        self.rewards_by_function: dict[str, Tensor] = {}
        """Each function's rewards for the last batch, (B,). Empty with a committee."""
        if self.committee is not None:
            if self.committee.ahead:
                raise ConfigError("committee.ahead=1 requires a GRPOTrainer, but this is a PolicyTrainer; set it to 0")
            self.committee.group_size = group_size

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the descriptions of the metrics that scoring a batch adds."""
        if self.committee is not None:
            return (UNSCORED, INFINITE, *self.committee.metric_specs())
        function_metrics = (MetricSpec(name=f"rewards/{name}/mean") for name in self._functions)
        return (UNSCORED, INFINITE, SKIPPED_GROUPS, SKIPPED_STEPS, *function_metrics)

    def __call__(self, conditions: Sequence[Any], outputs: Sequence[Any], step: int) -> BatchScores:
        """Score one batch. Raises ConfigError if a function returns a different number of rewards than samples."""
        arguments = self._arguments(conditions, outputs, step)
        if self.committee is not None:
            metrics: dict[str, float] = {}
            values = self.committee(**arguments, log_metric=metrics.__setitem__)
            rewards = torch.tensor([math.nan if value is None else float(value) for value in values])
            missing_reasons = dict(self.committee.last_outcome.abstentions)
        else:
            rewards, metrics, missing_reasons = self._sum_rewards(arguments, len(outputs))
        metrics |= {UNSCORED.name: float(rewards.isnan().sum()), INFINITE.name: float(rewards.isinf().sum())}
        skipped_groups = (~rewards.view(-1, self._group_size).isfinite()).any(1).sum()
        metrics[SKIPPED_GROUPS.name] = float(skipped_groups)
        return BatchScores(rewards, metrics, missing_reasons)

    def _arguments(self, conditions: Sequence[Any], outputs: Sequence[Any], step: int) -> dict[str, Any]:
        rows = repeat_conditions(conditions, self._group_size)
        keys_of_rows = (set(row) if isinstance(row, Mapping) else set() for row in rows)
        columns = sorted(set.intersection(*keys_of_rows) - {"prompt"})
        return {
            **{name: [row[name] for row in rows] for name in columns},
            "prompts": [prompt_of(row) for row in rows],
            "completions": list(outputs),
            "trainer_state": SimpleNamespace(global_step=step),
        }

    def _sum_rewards(self, arguments: Mapping[str, Any], rows: int) -> tuple[Tensor, dict[str, float], dict[str, int]]:
        """Return the sum of the functions' rewards, their metrics, and the number of samples without a finite sum."""
        metrics: dict[str, float] = {}
        self.rewards_by_function = {}
        for name, function in self._functions.items():
            values = list(function(**arguments, log_metric=metrics.__setitem__))
            if len(values) != rows:
                raise ConfigError(
                    f"the reward {name!r} returned {len(values)} numbers for {rows} samples; return one per sample"
                )
            function_rewards = torch.tensor([math.nan if value is None else float(value) for value in values])
            if not bool(function_rewards.isnan().all()):
                metrics[f"rewards/{name}/mean"] = float(function_rewards.nanmean())
            self.rewards_by_function[name] = function_rewards
        table = torch.stack(list(self.rewards_by_function.values()), 1)  # (B, functions)
        rewards = table.nansum(1).masked_fill(table.isnan().all(1), math.nan)
        missing_count = int((~rewards.isfinite()).sum())
        return rewards, metrics, {"no finite reward": missing_count} if missing_count else {}


def prompt_of(condition: Any) -> Any:
    """Return the part of a condition that the policy receives."""
    return condition["prompt"] if isinstance(condition, Mapping) and "prompt" in condition else condition


def publish_groups(
    client: LoopClient | None,
    step: int,
    prompts: Sequence[Any],
    outputs: Sequence[Any],
    scores: BatchScores,
    advantages: Tensor,
    scored_rows: Tensor,
    scoring: Scoring,
) -> None:
    """Publish some groups of this step's batch if the schedule requires it. `advantages` are those of `scored_rows`."""
    sampling = client.sampling if client is not None else None
    if client is None or sampling is None or client.tick + 1 < sampling.schedule.due_step:
        return
    try:
        tick, group_count = client.tick + 1, len(prompts)
        group_size = len(outputs) // group_count
        advantage_by_row = dict(zip(scored_rows.tolist(), advantages.tolist(), strict=True))
        for turn in sampling.schedule.take(tick, group_count):
            index = turn % group_count
            rows = range(index * group_size, (index + 1) * group_size)
            rewards = scores.rewards[rows.start : rows.stop].tolist()
            group_outputs = [outputs[row] for row in rows]
            # The partial functions are called later, outside the training thread.
            read_verdicts = partial(_function_verdicts, scoring.rewards_by_function, rows)
            if scoring.committee is not None:
                read_verdicts = partial(scoring.committee.evidence.group_verdicts, index)
            sample = partial(_make_sample, prompts[index], group_outputs, rewards, read_verdicts)
            sampling.sample_count += 1
            numbers = SampleNumbers(sampling.sample_count, tick, step, index, group_count)
            group_advantages = [advantage_by_row.get(row, math.nan) for row in rows]
            client.show(partial(sampling.convert, client.position, numbers, group_advantages, sample))
    except Exception as error:  # the error's text is not logged, because it may quote a prompt
        log.warning("completions of step %d are not shown: %s", step, type(error).__name__)


def _make_sample(
    prompt: Any, outputs: Sequence[Any], rewards: Sequence[float], read_verdicts: Callable[[], list[MemberVerdict]]
) -> Sample:
    return Sample(prompt, outputs, rewards, read_verdicts())


def _function_verdicts(rewards_by_function: Mapping[str, Tensor], rows: range) -> list[MemberVerdict]:
    """Return the rewards of some rows as verdicts of the reward functions, which all have the weight 1."""
    group = slice(rows.start, rows.stop)
    return [MemberVerdict(name, 1.0, rewards[group].tolist()) for name, rewards in rewards_by_function.items()]

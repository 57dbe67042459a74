"""A GRPO trainer for any kind of policy. It runs in one process and connects to the controller."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.hf.knobs.trainer_knobs import UserValues
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.policies import checkpoint
from oven_learner.policies.batch import Batch, batch_seed
from oven_learner.policies.condition_sources import ConditionSource, as_source
from oven_learner.policies.grpo_objective import compute_advantages, compute_objective, compute_row_weights
from oven_learner.policies.policy import Policy, check_policy, repeat_conditions
from oven_learner.policies.policy_teachers import AnyTeacher, PolicyTeachers
from oven_learner.policies.scoring import KL, SAMPLE_METRICS, Scoring, prompt_of, publish_groups
from oven_learner.rewards.committee import SKIPPED_STEPS, Committee
from oven_learner.rewards.committee_knobs import register_committee_knobs
from oven_learner.rewards.verdicts import RewardFunction
from oven_learner.teachers.kl_knobs import register_beta, register_teacher_knob

LOSS_TYPES = ("dapo", "grpo")


@dataclass(frozen=True, kw_only=True)
class PolicyTrainerConfig:
    """Settings of a PolicyTrainer, with the names and defaults of TRL 1.16's GRPOConfig where they exist. Raises
    ConfigError for invalid values."""

    max_steps: int
    """Number of training steps. A step without a scored group does not change the weights."""
    group_size: int = 8
    """Samples per condition."""
    conditions_per_step: int = 4
    learning_rate: float = 1e-6
    """Constant learning rate of AdamW. Ignored if the trainer receives an `optimizer`."""
    beta: float = 0.0
    """Weight of the KL term."""
    epsilon: float = 0.2
    """Clipping range of the ratio below 1, and also above 1 unless `epsilon_high` is set."""
    epsilon_high: float | None = None
    """Clipping range of the ratio above 1. None means the same as `epsilon`."""
    loss_type: Literal["dapo", "grpo"] = "dapo"
    """With "dapo", the loss is the mean over all steps. With "grpo", it is the mean of the samples' own means."""
    updates_per_batch: int = 1
    """Number of updates per batch of samples, called num_iterations in TRL."""
    rows_per_pass: int | None = None
    """Maximum number of samples per forward pass, to save memory. None means all."""
    max_grad_norm: float | None = 1.0
    seed: int = 0
    """Seed for the samples of each batch and the order of conditions."""
    hold_after: int = 10
    """Consecutive steps without a scored group after which the run is held. A Committee's own setting replaces it."""
    lr_bounds: tuple[float, float] = USER_BOUNDS
    """Lowest and highest learning rate during the run, as multiples of `learning_rate`."""
    beta_bounds: tuple[float, float] = USER_BOUNDS
    """Lowest and highest β during the run, as multiples of `beta`."""
    save_steps: int = 0
    """Steps between checkpoints in `output_dir`. With 0, only one checkpoint is written, at the end."""

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"group_size={self.group_size} is invalid; advantages compare samples, so use 2 or more")
        for name in ("max_steps", "conditions_per_step", "updates_per_batch", "hold_after", "rows_per_pass"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} is invalid; expected 1 or more")
        if self.loss_type not in LOSS_TYPES:
            raise ConfigError(f"loss_type={self.loss_type!r} is unknown; choose from {', '.join(LOSS_TYPES)}")
        if not (math.isfinite(self.beta) and self.beta >= 0):
            raise ConfigError(f"beta={self.beta:g} is invalid; expected a finite number of 0 or more")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ConfigError(f"learning_rate={self.learning_rate:g} is invalid; expected a finite number above 0")
        if not 0 < self.epsilon <= 1:
            raise ConfigError(f"epsilon={self.epsilon:g} is invalid; expected 0 < epsilon <= 1")
        if self.epsilon_high is not None and self.epsilon_high <= 0:
            raise ConfigError(f"epsilon_high={self.epsilon_high:g} is invalid; expected a number above 0, or None")


class PolicyTrainer:
    """A GRPO trainer for one policy.

    Groups with a missing or infinite reward are skipped in the loss. If all groups are skipped, the weights stay
    unchanged. The random generators are seeded for each batch, so resuming from a checkpoint gives identical results.
    """

    def __init__(
        self,
        policy: Policy,
        rewards: Committee | Mapping[str, RewardFunction],
        conditions: Sequence[Any] | ConditionSource,
        config: PolicyTrainerConfig,
        *,
        teachers: Mapping[str, AnyTeacher] | None = None,
        teacher: str = "",
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        evaluate: Callable[[], Measurements] | None = None,
        evaluate_every: int = 20,
        metrics: tuple[MetricSpec, ...] = (),
        output_dir: Path | str | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """Raises ConfigError if training is not possible.

        Args:
            rewards: a Committee, or reward functions by name, whose rewards are added.
            conditions: a list, or a source with `next_batch(n)`. A condition may be a mapping with a "prompt" for the
                policy and other columns for the rewards.
            teachers: teachers by name, from weak to strong. If β is above 0 but there are no teachers, the policy's
                initial state becomes the teacher "initial".
            teacher: the teacher that is active at the start, by default the first.
            optimizer: by default AdamW without weight decay.
            evaluate, evaluate_every: the same as for `oven.connect`.
            metrics: descriptions of metrics, such as the reward and its maximum. They replace the trainer's own.
        """
        self.accelerator = accelerator or Accelerator()
        processes = self.accelerator.num_processes
        if processes > 1:
            raise ConfigError(f"PolicyTrainer supports one process, not {processes}; start it without a launcher")
        self.config, self.scoring = config, Scoring(rewards, config.group_size)
        self.source = as_source(conditions, config.seed)
        self.conditions = self._next_conditions()
        self.completed_updates = 0
        check_policy(policy, [prompt_of(self.conditions[0])])
        self.policy = policy.to(self.accelerator.device).eval()
        if optimizer is None:
            trained_parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
            optimizer = torch.optim.AdamW(trained_parameters, lr=config.learning_rate, weight_decay=0.0)
        self.optimizer, self.scheduler = self.accelerator.prepare(optimizer), scheduler
        self.beta, self.epsilon = config.beta, (config.epsilon, config.epsilon_high or config.epsilon)
        self.teachers = PolicyTeachers(self.policy, [prompt_of(self.conditions[0])])
        if not teachers and config.beta:
            teachers = {"initial": copy.deepcopy(self.policy)}
        for name, model in (teachers or {}).items():
            self.teachers.add(name, model)
        if teacher:
            self.teachers.swap(teacher)
        self.output = Path(output_dir) if output_dir is not None else None
        self.batch: Batch | None = None
        self.step, self.skipped_steps = 0, 0
        self.client: LoopClient | None = None
        self.step_callbacks: list[Callable[[int, Mapping[str, float]], None]] = []
        """Functions that receive the step's number and metrics after each update."""
        self._missing_reasons: Counter[str] = Counter()
        self._connect_options: dict[str, Any] = {"evaluate": evaluate, "evaluate_every": evaluate_every}
        self._metrics = metrics

    def train(self, **options: Any) -> None:
        """Train up to `max_steps`, or until the run is stopped. `options` are passed to `oven.connect`."""
        actuators = options.pop("actuators", None) or Actuators()
        self._register_knobs(actuators)
        options = {
            "model": self.policy,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "clip": self.config.max_grad_norm,
            "max_steps": self.config.max_steps,
            "step": self.step,
            "metrics": self.metric_specs(),
            "lr_bounds": self.config.lr_bounds,
            "recipe": "policy",
            **self._connect_options,
            **options,
        }
        try:
            with connect(actuators, **options) as client:
                self.client = client
                if self.step < self.config.max_steps:
                    self._loop(client)
                if self.output is not None:
                    checkpoint.save(self, self.output)
        finally:
            if self.scoring.committee is not None:
                self.scoring.committee.close()

    def _register_knobs(self, actuators: Actuators) -> None:
        """Register the same knobs as for TRL's GRPOTrainer: `grpo.beta` with a teacher, `teacher.active` with two or
        more teachers, `grpo.epsilon` if a batch is used for several updates, and a committee's knobs. `connect`
        registers the learning rate and the gradient clip."""
        config = self.config
        has_two_epsilons = config.epsilon_high is not None and config.epsilon_high != config.epsilon

        def set_beta(value: float) -> None:
            self.beta = value

        def set_low(value: float) -> None:
            self.epsilon = (value, self.epsilon[1] if has_two_epsilons else value)

        def set_high(value: float) -> None:
            self.epsilon = (self.epsilon[0], value)

        if len(self.teachers):
            unit = "× KL per step, in the loss"
            register_beta(actuators, config.beta, lambda: self.beta, set_beta, config.beta_bounds, unit)
            register_teacher_knob(actuators, self.teachers, lambda: self.client)
        if config.updates_per_batch > 1:
            user_values = UserValues()
            unit = "ratio below 1" if has_two_epsilons else "ratio around 1"
            user_values.register(actuators, "grpo.epsilon", lambda: self.epsilon[0], set_low, unit=unit, max_value=1.0)
            if has_two_epsilons:
                user_values.register(
                    actuators, "grpo.epsilon_high", lambda: self.epsilon[1], set_high, unit="ratio above 1"
                )
        if self.scoring.committee is not None:
            register_committee_knobs(actuators, self.scoring.committee)

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of each step."""
        user_names = {spec.name for spec in self._metrics}
        specs = (*SAMPLE_METRICS, *((KL,) if len(self.teachers) else ()), *self.scoring.metric_specs())
        return (*(spec for spec in specs if spec.name not in user_names), *self._metrics)

    def update(self, batch_number: int, conditions: Sequence[Any]) -> dict[str, float]:
        """Update the weights once and return the step's metrics. The batch is sampled first, unless an earlier update
        has sampled it. A skipped step has the metrics of its samples, but no loss."""
        if self.batch is None or self.batch.number != batch_number:
            self.batch = self.rollout(batch_number, conditions)
        metrics = self.batch.take_metrics()
        metrics[SKIPPED_STEPS.name] = float(not len(self.batch.samples))
        if not len(self.batch.samples):
            self.skipped_steps += 1
            return metrics
        self.skipped_steps, self._missing_reasons = 0, Counter()
        self.optimizer.zero_grad()
        metrics |= self.backward(self.batch)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return metrics

    def rollout(self, batch_number: int, conditions: Sequence[Any]) -> Batch:
        """Sample and score a batch. Groups without a full set of rewards are dropped."""
        config, prompts = self.config, [prompt_of(condition) for condition in conditions]
        with batch_seed(config.seed, batch_number), torch.no_grad():
            samples = self.policy.sample(prompts, config.group_size)
            if len(samples) != len(prompts) * config.group_size:
                raise ConfigError(
                    f"the policy returned {len(samples)} samples for {len(prompts)} conditions; expected "
                    f"{config.group_size} per condition"
                )
            scores = self.scoring(conditions, samples.outputs, self.step)
        is_scored = scores.rewards.view(-1, config.group_size).isfinite().all(1)  # (groups,)
        scored_rows = is_scored.repeat_interleave(config.group_size).nonzero().flatten()
        device = samples.mask.device
        row_prompts = repeat_conditions(prompts, config.group_size)
        scored_prompts = [row_prompts[row] for row in scored_rows.tolist()]
        scored_samples = samples.select(scored_rows.to(device))
        batch = Batch(batch_number, scored_samples, scored_prompts, advantages=torch.zeros(0, device=device))
        batch.metrics = dict(scores.metrics)
        self._missing_reasons.update(scores.missing_reasons)
        if len(scored_rows):
            batch_advantages, group_std = compute_advantages(scores.rewards[scored_rows], config.group_size)
            batch.advantages = batch_advantages.to(device)
            log_probs = self._log_probs(self.policy, batch)
            batch.old_log_probs = log_probs if config.updates_per_batch > 1 else None
            mask = batch.samples.mask
            batch.metrics |= {
                "reward": float(scores.rewards[scored_rows].mean()),
                "reward_std": float(group_std.mean()),
                "frac_reward_zero_std": float((group_std < 1e-8).float().mean()),
                "entropy": float(-(log_probs * mask).sum() / mask.sum()),
                "completions/mean_length": float(mask.sum(-1).mean()),
            }
        publish_groups(
            self.client, self.step, prompts, samples.outputs, scores, batch.advantages, scored_rows, self.scoring
        )
        return batch

    def backward(self, batch: Batch) -> dict[str, float]:
        """Add the gradient of the batch's loss to the parameters, and return the loss and its metrics."""
        teacher_log_probs = self._teacher_log_probs(batch) if self.beta else None
        weights, step_count = compute_row_weights(batch.samples.mask, self.config.loss_type), batch.samples.mask.sum()
        sums = torch.zeros(3, device=step_count.device)
        for rows in batch.row_chunks(self.config.rows_per_pass):
            with self.accelerator.autocast():
                log_probs = self.policy.step_log_probs(batch.samples.select(rows), batch.select_conditions(rows))
            loss, kl, clipped = compute_objective(
                log_probs,
                log_probs.detach() if batch.old_log_probs is None else batch.old_log_probs[rows],
                None if teacher_log_probs is None else teacher_log_probs[rows],
                batch.advantages[rows],
                batch.samples.mask[rows],
                beta=self.beta,
                epsilon=self.epsilon,
                row_weight=weights[rows],
            )
            self.accelerator.backward(loss)
            sums += torch.stack([loss.detach(), kl / step_count, clipped / step_count])
        total_loss, mean_kl, clipped_share = sums.tolist()
        metrics = {"loss": total_loss, "clip_ratio/region_mean": clipped_share}
        if teacher_log_probs is not None:
            metrics[KL.name] = mean_kl
        return metrics

    def _loop(self, client: LoopClient) -> None:
        hold_after = self.scoring.committee.hold_after if self.scoring.committee else self.config.hold_after
        for update_index, conditions in self._numbered_conditions():
            self.step = client.step + 1
            metrics = self.update(update_index // self.config.updates_per_batch, conditions)
            for callback in self.step_callbacks:
                callback(self.step, metrics)
            self.completed_updates = update_index + 1
            judge_costs = self.scoring.committee.take_cost() if self.scoring.committee else {}
            client.observe(self.step, {**metrics, **judge_costs})
            if self.skipped_steps >= hold_after:
                reasons = ", ".join(f"{kind} {count}" for kind, count in self._missing_reasons.most_common())
                client.hold(f"no group had a reward in {self.skipped_steps} consecutive steps ({reasons or 'unknown'})")
                self.skipped_steps = 0
            client.poll()
            if client.step != self.step:  # rolled back, so the samples came from other weights
                self.step, self.batch = client.step, None
                checkpoint.abandon_after(self.output, self.step)
            elif self.output and self.config.save_steps and self.step % self.config.save_steps == 0:
                checkpoint.save(self, self.output)
            if client.stopping or client.step >= self.config.max_steps:
                return

    def _numbered_conditions(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the index of each update, starting at 0 for a new run, and the conditions of its batch."""
        for index in itertools.count(self.completed_updates):
            if index and index % self.config.updates_per_batch == 0:
                self.conditions = self._next_conditions()
            yield index, self.conditions

    def _next_conditions(self) -> list[Any]:
        count = self.config.conditions_per_step
        conditions = list(self.source.next_batch(count))
        if len(conditions) != count:
            raise ConfigError(f"the source of conditions returned {len(conditions)} conditions; expected {count}")
        return conditions

    def _teacher_log_probs(self, batch: Batch) -> Tensor:
        """Return the active teacher's log-probabilities, computed once per batch and again after a swap."""
        name = self.teachers.active
        if batch.teacher_log_probs is None or batch.teacher_log_probs[0] != name:
            batch.teacher_log_probs = name, self._log_probs(self.teachers[name], batch)
        return batch.teacher_log_probs[1]

    @torch.no_grad()
    def _log_probs(self, policy: Policy, batch: Batch) -> Tensor:
        chunks = batch.row_chunks(self.config.rows_per_pass)
        with self.accelerator.autocast():
            log_probs = [
                policy.step_log_probs(batch.samples.select(rows), batch.select_conditions(rows)) for rows in chunks
            ]
        return torch.cat(log_probs)

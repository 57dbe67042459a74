"""GRPO for any kind of policy, in one process, on accelerate and `oven.connect`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.policies import checkpoint, knobs
from oven_learner.policies.batch import Batch, drawn
from oven_learner.policies.conditions import ConditionSource, source_of
from oven_learner.policies.objective import advantages, objective, row_weights
from oven_learner.policies.policy import Policy, check_policy, repeated
from oven_learner.policies.policy_teachers import AnyTeacher, PolicyTeachers
from oven_learner.policies.scoring import KL, OF_SAMPLES, SKIPPED_STEPS, Scoring, prompt_of
from oven_learner.policies.shown_groups import show_groups
from oven_learner.policies.trainer_config import PolicyTrainerConfig
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.rule_members import RewardFunction


class PolicyTrainer:
    """Trains `policy` on the rewards of its samples. Groups with a missing or infinite reward are skipped in the loss.
    If all are, the weights stay unchanged.

    `conditions` are a list, or a source with `next_batch(n)`. A mapping has a "prompt" for the policy and columns for
    the rewards. `teachers`, weakest first, constrain the policy with weight `beta`. Without any but with a β, a frozen
    copy of the policy becomes the teacher "initial". `teacher` is the initially active one. `evaluate` is as in
    `oven.connect`. A batch's samples and rewards depend only on the seed and the batch's number, so training continues
    from a checkpoint bit for bit. Raises ConfigError before the first step for anything that could not train.
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
        evaluate: Callable[[], Measured] | None = None,
        evaluate_every: int = 20,
        metrics: tuple[MetricSpec, ...] = (),
        output_dir: Path | str | None = None,
        accelerator: Accelerator | None = None,
    ) -> None:
        """`optimizer`: default is AdamW without weight decay. `metrics`: additional metrics of `evaluate` and the
        rewards, and more detail on existing ones, such as the best possible reward."""
        self.accelerator = accelerator or Accelerator()
        if (ranks := self.accelerator.num_processes) > 1:
            raise ConfigError(f"PolicyTrainer trains in one process, not in {ranks}; start it without a launcher")
        self.config, self.scoring = config, Scoring(rewards, config.group_size)
        self.source = source_of(conditions, config.seed)
        self.conditions = self._next_conditions()
        self.position = 0
        """Number of finished updates."""
        check_policy(policy, [prompt_of(self.conditions[0])])
        self.policy = policy.to(self.accelerator.device).eval()
        trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        optimizer = optimizer or torch.optim.AdamW(trained, lr=config.learning_rate, weight_decay=0.0)
        self.optimizer, self.scheduler = self.accelerator.prepare(optimizer), scheduler
        self.beta, self.epsilon = config.beta, (config.epsilon, config.epsilon_high or config.epsilon)
        self.teachers = PolicyTeachers(self.policy, [prompt_of(self.conditions[0])])
        for name, model in (teachers or ({"initial": copy.deepcopy(self.policy)} if config.beta else {})).items():
            self.teachers.add(name, model)
        if teacher:
            self.teachers.swap(teacher)
        self.output = Path(output_dir) if output_dir is not None else None
        self.batch: Batch | None = None
        self.step, self.skipped = 0, 0
        self.client: LoopClient | None = None
        self._why: Counter[str] = Counter()
        self._connect_options: dict[str, Any] = {"evaluate": evaluate, "evaluate_every": evaluate_every}
        self._metrics = metrics

    def train(self, **options: Any) -> None:
        """Train up to `max_steps`, or until stopped. `options` are passed to `oven.connect`."""
        actuators = options.pop("actuators", None) or Actuators()
        knobs.announce(self, actuators)
        options = {
            "model": self.policy,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "clip": self.config.max_grad_norm,
            "max_steps": self.config.max_steps,
            "step": self.step,
            "metrics": self.announced(),
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

    def announced(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of each step."""
        own = {spec.name for spec in self._metrics}
        specs = (*OF_SAMPLES, *((KL,) if len(self.teachers) else ()), *self.scoring.announced())
        return (*(spec for spec in specs if spec.name not in own), *self._metrics)

    def update(self, number: int, conditions: Sequence[Any]) -> dict[str, float]:
        """Update the weights once with batch `number`, sampling it first if needed.

        Returns the step's metrics. A skipped step has the metrics of its samples, but no loss.
        """
        if self.batch is None or self.batch.number != number:
            self.batch = self.rollout(number, conditions)
        metrics = self.batch.take_metrics()
        metrics[SKIPPED_STEPS.name] = float(not len(self.batch.samples))
        if not len(self.batch.samples):
            self.skipped += 1
            return metrics
        self.skipped, self._why = 0, Counter()
        self.optimizer.zero_grad()
        metrics |= self.backward(self.batch)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        return metrics

    def rollout(self, number: int, conditions: Sequence[Any]) -> Batch:
        """Sample and score batch `number`. Unscored groups are dropped."""
        config, prompts = self.config, [prompt_of(condition) for condition in conditions]
        with drawn(config.seed, number), torch.no_grad():
            samples = self.policy.sample(prompts, config.group_size)
            if len(samples) != len(prompts) * config.group_size:
                raise ConfigError(
                    f"the policy returned {len(samples)} samples for {len(prompts)} × {config.group_size}"
                )
            scored = self.scoring(conditions, samples.outputs, self.step)
        whole = scored.rewards.view(-1, config.group_size).isfinite().all(1)
        scored_rows = whole.repeat_interleave(config.group_size).nonzero().flatten()
        device = samples.mask.device
        rows = repeated(prompts, config.group_size)
        batch = Batch(
            number,
            samples.rows(scored_rows.to(device)),
            [rows[row] for row in scored_rows.tolist()],
            scored_rows.float(),
        )
        batch.metrics = dict(scored.metrics)
        self._why.update(scored.why)
        gain: Tensor | None = None
        if len(scored_rows):
            gain, deviation = advantages(scored.rewards[scored_rows], config.group_size)
            batch.advantages = gain.to(device)
            log_probs = self._scored(self.policy, batch)
            batch.old = log_probs if config.updates_per_batch > 1 else None
            mask = batch.samples.mask
            batch.metrics |= {
                "reward": float(scored.rewards[scored_rows].mean()),
                "reward_std": float(deviation.mean()),
                "frac_reward_zero_std": float((deviation < 1e-8).float().mean()),
                "entropy": float(-(log_probs * mask).sum() / mask.sum()),
                "completions/mean_length": float(mask.sum(-1).mean()),
            }
        show_groups(self.client, self.step, prompts, samples.outputs, scored, gain, scored_rows.tolist(), self.scoring)
        return batch

    def backward(self, batch: Batch) -> dict[str, float]:
        """Add the loss's gradient on the batch to the parameters; return the loss and its metrics."""
        reference = self._reference(batch) if self.beta else None
        weights, total = row_weights(batch.samples.mask, self.config.loss_type), batch.samples.mask.sum()
        sums = torch.zeros(3, device=total.device)
        for part in batch.parts(self.config.rows_per_pass):
            with self.accelerator.autocast():
                now = self.policy.step_log_probs(batch.samples.rows(part), batch.conditions_of(part))
            terms = objective(
                now,
                now.detach() if batch.old is None else batch.old[part],
                None if reference is None else reference[part],
                batch.advantages[part],
                batch.samples.mask[part],
                beta=self.beta,
                epsilon=self.epsilon,
                row_weight=weights[part],
            )
            self.accelerator.backward(terms.loss)
            sums += torch.stack([terms.loss.detach(), terms.kl / total, terms.clipped / total])
        loss, kl, clipped = sums.tolist()
        return {"loss": loss, "clip_ratio/region_mean": clipped, **({KL.name: kl} if reference is not None else {})}

    def _loop(self, client: LoopClient) -> None:
        held_after = self.scoring.committee.hold_after if self.scoring.committee else self.config.hold_after
        for index, conditions in self._items():
            self.step = client.step + 1
            metrics = self.update(index // self.config.updates_per_batch, conditions)
            self.position = index + 1
            cost = self.scoring.committee.take_cost() if self.scoring.committee else {}
            client.observe(self.step, {**metrics, **cost})
            if self.skipped >= held_after:
                reasons = ", ".join(f"{kind} {count}" for kind, count in self._why.most_common())
                client.hold(f"no group had a reward in {self.skipped} steps in a row ({reasons or 'no reason given'})")
                self.skipped = 0
            client.poll()
            if client.step != self.step:  # a rollback: the samples belong to other weights
                self.step, self.batch = client.step, None
                checkpoint.abandon_after(self.output, self.step)
            elif self.output and self.config.save_steps and self.step % self.config.save_steps == 0:
                checkpoint.save(self, self.output)
            if client.stopping or client.step >= self.config.max_steps:
                return

    def _items(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number and conditions of each update."""
        index = self.position
        while True:
            if index and index % self.config.updates_per_batch == 0:
                self.conditions = self._next_conditions()
            yield index, self.conditions
            index += 1

    def _next_conditions(self) -> list[Any]:
        count = self.config.conditions_per_step
        conditions = list(self.source.next_batch(count))
        if len(conditions) != count:
            raise ConfigError(f"the source of conditions returned {len(conditions)}, expected {count}")
        return conditions

    def _reference(self, batch: Batch) -> Tensor:
        """Return the active teacher's log-probabilities, computed once per batch and again after a swap."""
        name = self.teachers.active
        if batch.reference is None or batch.reference[0] != name:
            batch.reference = name, self._scored(self.teachers[name], batch)
        return batch.reference[1]

    @torch.no_grad()
    def _scored(self, policy: Policy, batch: Batch) -> Tensor:
        parts = batch.parts(self.config.rows_per_pass)
        with self.accelerator.autocast():
            log_probs = [policy.step_log_probs(batch.samples.rows(part), batch.conditions_of(part)) for part in parts]
        return torch.cat(log_probs)

"""The GRPO trainee: a step samples, judges and optimizes on one thread in a few milliseconds.

The loss is GRPO's (Shao et al. 2024, arXiv 2402.03300), over all tokens of the batch as in DAPO (Yu et al. 2025, arXiv
2503.14476, eq. 8), so that no token is weighted by the length of its completion.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oven_bench.gym.fault import NOTHING, Fault, Rewards, Step
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.policy import Policy, warm_weights
from oven_bench.gym.sorting.sorting_task import (
    JUDGES,
    LEVELS,
    PAD,
    Completions,
    Prompts,
    Verdict,
    draw,
    held_out,
    judged,
    scores,
)
from oven_bench.gym.task_table import Kind
from oven_bench.gym.tasks.grpo.knobs import Knobs
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""Bounds of the ratio to the sampling policy, below and above 1 (DAPO, section 3.1)."""
FLAT = 1e-4
"""Added to a group's standard deviation, so that a group without differences does not divide by 0."""


def advantages(rewards: Tensor) -> Tensor:
    """Rewards [groups, group], standardised within each group."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + FLAT)


def policy_loss(log_probs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """The mean over all tokens [N] of the batch, with log-probabilities under the policy and under the sampling policy.

    With one step per batch the two are equal: the ratio is 1 and nothing is clipped.
    """
    ratio = (log_probs - sampled).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages).mean()


def kl(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The mean over tokens [N] of the estimator k3 of KL(policy ‖ reference), which is never negative (eq. 4)."""
    gap = reference - log_probs
    return (gap.exp() - gap - 1).mean()


EVALUATE_EVERY = 20
USER = {
    "learning_rate": 3e-3,
    "clip": 1.0,
    "beta": 0.02,
    "temperature": 1.0,
    "prompts": 16.0,
    "group": 8.0,
    **{f"data.mixture/{level}": 1 / len(LEVELS) for level in LEVELS},
    "reward.weights/exact": 0.4,
    "reward.weights/format": 0.2,
    "reward.weights/critic": 0.4,
}
"""The user's settings. Only the sampler uses `temperature`: the loss uses the policy's own log-probabilities, so it
does not notice a wrong one."""


class Grpo:
    """One seed's run: 16 prompts × 8 completions per step, from a warm-up with mixed habits, with Adam."""

    kind: Kind = "grpo"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.settings = dict(USER)
        self.gradient_steps = self.cursor = 0
        warm = warm_weights(seed)
        self.policy, self.reference = _policy(warm), _policy(warm).requires_grad_(False)
        self.model: nn.Module = self.policy
        self._parameters = [*self.policy.parameters()]
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self._parameters, betas=(0.9, 0.99), fused=True)
        self.knobs = Knobs(self.settings)
        self.actuators: Actuators = self.knobs.actuators
        self.metrics = METRICS
        self._evaluate_next = False
        self.actuators.action(EVALUATE, self._request_evaluation, effect="measures")

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """Make one optimizer step. Without any judged group there is no update, but the step still counts."""
        fault = fault or NOTHING
        self.settings.update(USER)
        step = self.step(fault)
        fault.apply_settings(step)
        fault.apply_weights(step)
        verdict, completions = step.verdict, step.completions
        metrics = {**verdict.metrics, **_reward_metrics(verdict.rewards, verdict.scored, completions)}
        metrics["completions/mean_length"] = float(completions.lengths.float().mean())
        metrics["learning_rate"] = self.knobs.learning_rate
        if verdict.scored.any():
            metrics |= self._step(step, fault)
        self.gradient_steps += 1
        self.cursor += 1
        if self.gradient_steps % EVALUATE_EVERY == 0 or self._evaluate_next:
            self._evaluate_next = False
            metrics["eval/accuracy"] = 1 - self.quality()
        return metrics

    def step(self, fault: Fault = NOTHING) -> GrpoStep:
        """The next step."""
        return GrpoStep(self, fault)

    @torch.no_grad()
    def quality(self) -> float:
        """1 − the share of held-out prompts that the policy sorts (greedily, mean over levels)."""
        prompts = held_out()
        if not torch.isfinite(parameters_to_vector(self._parameters)).all():
            return 1.0
        right = (self.policy.sample(prompts.digits, 1.0, None) == prompts.answers).all(1).float()
        return 1 - math.fsum(float(right[prompts.levels == level].mean()) for level in range(len(LEVELS))) / len(LEVELS)

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: weight.clone() for name, weight in self.policy.state_dict().items()},
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "cursor": self.cursor,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.cursor = state["cursor"]

    @torch.no_grad()
    def examples(self) -> list[float]:
        """1 for each held-out prompt that the policy sorts (greedily), else 0. NaN if the policy is broken."""
        prompts = held_out()
        if not torch.isfinite(parameters_to_vector(self._parameters)).all():
            return [math.nan] * len(prompts.digits)
        right = (self.policy.sample(prompts.digits, 1.0, None) == prompts.answers).all(1)
        return [float(sorted_right) for sorted_right in right]

    def _request_evaluation(self, _: float | None) -> float:
        """Have the next step measure `eval/accuracy`."""
        self._evaluate_next = True
        return float(self.gradient_steps)

    def _step(self, step: GrpoStep, fault: Fault) -> dict[str, float]:
        """Optimize on the groups that were scored."""
        distribution = self.policy(step.digits, step.answers)  # [N, TOKENS]
        log_probs = distribution.gather(-1, step.answers[step.mask].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(-1).mean()
        divergence = kl(log_probs, step.reference)
        loss = policy_loss(log_probs, log_probs.detach(), step.credit)
        if beta := self.knobs.beta:
            loss = loss + beta * divergence
        loss = fault.apply_loss(loss, step)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        fault.apply_gradients(step)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.knobs.clip)
        metrics = {"loss": float(loss.detach()), "grad_norm": float(norm), "entropy": float(entropy)}
        return {**metrics, "kl": float(divergence.detach()), **self._updated()}

    @torch.no_grad()
    def _updated(self) -> dict[str, float]:
        """Make the optimizer's step, and return its gauges."""
        metrics = {}
        if moments := [self.optimizer.state[p]["exp_avg"] for p in self._parameters if p in self.optimizer.state]:
            gradient = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
            moment = torch.cat([tensor.flatten() for tensor in moments])
            if scale := float(gradient.norm() * moment.norm()):
                metrics["optim/grad_momentum_cos"] = float(gradient @ moment) / scale
        before = parameters_to_vector(self._parameters)
        self.optimizer.param_groups[0]["lr"] = self.knobs.learning_rate
        self.optimizer.step()
        after = parameters_to_vector(self._parameters)
        norm = float(after.norm())
        update = float((after - before).norm())
        return {**metrics, "optim/weight_norm": norm, **({"optim/update_ratio": update / norm} if norm else {})}


class GrpoStep(Step):
    """A step of GRPO. The fault acts on its prompts and rewards."""

    def __init__(self, trainee: Grpo, fault: Fault) -> None:
        super().__init__(trainee, fault)
        self._knobs, self._fault, self._reference = trainee.knobs, fault, trainee.reference
        self.policy = trainee.policy

    @cached_property
    def completions(self) -> Completions:
        draws = generator("step", self.seed, self.cursor)
        prompts: Prompts = draw(int(self.settings["prompts"]), self._knobs.simplex("data.mixture"), draws)
        group = int(self.settings["group"])
        prompts = self._fault.apply_batch(prompts, self).repeated(group)
        tokens = self.policy.sample(prompts.digits, self.settings["temperature"], draws)
        return Completions(prompts, tokens, tokens != PAD, group)

    @cached_property
    def verdict(self) -> Verdict:
        """The committee's rewards, from the judges' scores as the fault leaves them."""
        judge_scores = self._fault.apply_rewards(self._scores(), self)
        return judged(judge_scores, self._knobs.simplex("reward.weights"), self.completions.group)

    @cached_property
    def digits(self) -> Tensor:
        """The prompts of `answers`: int64 [B, PROMPT]."""
        return self.completions.prompts.digits[self._scored]

    @cached_property
    def answers(self) -> Tensor:
        """Int64 [B, ANSWER], the completions of all groups that were scored."""
        return self.completions.tokens[self._scored]

    @cached_property
    def mask(self) -> Tensor:
        return self.completions.mask[self._scored]

    @cached_property
    def credit(self) -> Tensor:
        by_completion = advantages(self.verdict.rewards[self.verdict.scored])  # [groups, group]
        return by_completion.view(-1, 1).expand(self.mask.shape)[self.mask]

    @cached_property
    def log_probs(self) -> Tensor:
        return self._token_log_probs(self.policy)

    @cached_property
    def reference(self) -> Tensor:
        with torch.no_grad():
            return self._token_log_probs(self._reference)

    @cached_property
    def _scored(self) -> Tensor:
        """Bool [rows]: the rows of groups that have rewards."""
        return self.verdict.scored.repeat_interleave(self.completions.group)

    def _scores(self) -> Rewards:
        return scores(self.completions, self.seed, self.cursor)

    def answer(self, tokens: Tensor, rows: Tensor | None = None) -> Rewards:
        chosen = slice(None) if rows is None else rows
        self.completions.tokens[chosen] = tokens
        self.completions.mask[chosen] = tokens != PAD
        return self._scores()

    def sample(self, rows: Tensor, *, policy: Policy, draws: torch.Generator) -> Tensor:
        return policy.sample(self.completions.prompts.digits[rows], self.settings["temperature"], draws)

    def grpo_loss(self, credit: Tensor) -> Tensor:
        mine = self.log_probs
        return policy_loss(mine, mine.detach(), credit) + self._knobs.beta * kl(mine, self.reference)

    def _token_log_probs(self, policy: Policy) -> Tensor:
        tokens = self.answers[self.mask].unsqueeze(-1)
        log_probs: Tensor = policy(self.digits, self.answers).gather(-1, tokens).squeeze(-1)
        return log_probs


def _policy(weights: Mapping[str, Tensor]) -> Policy:
    with torch.random.fork_rng(devices=[]):
        policy = Policy()
    policy.load_state_dict(weights)
    return policy


def _reward_metrics(rewards: Tensor, scored: Tensor, completions: Completions) -> dict[str, float]:
    """Metrics of the rewards of all groups that have some."""
    if not scored.any():
        return {}
    present = rewards[scored]
    spread = present.std(1)
    metrics = {
        "reward": float(present.mean()),
        "reward_std": float(spread.mean()),
        "frac_reward_zero_std": float((spread < 1e-6).float().mean()),
    }
    levels = completions.prompts.levels.view(rewards.shape)[:, 0]
    for index, level in enumerate(LEVELS):
        if (own := scored & (levels == index)).any():
            metrics[f"reward/{level}"] = float(rewards[own].mean())
    return metrics


METRICS = (
    MetricSpec(name="loss"),
    MetricSpec(name="grad_norm", unit="before clipping"),
    MetricSpec(name="learning_rate"),
    MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1"),
    MetricSpec(name="optim/update_ratio", unit="norm of the update / norm of the weights"),
    MetricSpec(name="optim/weight_norm"),
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="reward_std"),
    MetricSpec(name="frac_reward_zero_std", unit="share of groups"),
    MetricSpec(name="kl", unit="nats per token, to the reference model"),
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="completions/mean_length", unit="tokens"),
    *(MetricSpec(name=f"rewards/{judge}/mean", unit="of the groups that it scored") for judge in JUDGES),
    MetricSpec(name="committee/agreement", unit="correlation in a group, mean over pairs of members with weight"),
    MetricSpec(name="committee/abstentions", better="down", unit="of this batch, one a member and group"),
    *(MetricSpec(name=f"reward/{level}", better="up", ceiling=1.0) for level in LEVELS),
    MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0, unit="greedy, mean over levels"),
)

"""Real GRPO on a policy that is small enough: sample, judge, step, all on one thread in a few milliseconds."""

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
from oven_bench.gym.sorting.scoring import JUDGES, Completions, Verdict, judged, scores
from oven_bench.gym.sorting.sorting_prompts import LEVELS, PAD, Prompts, draw, held_out
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.sorting.warm_weights import warm_weights
from oven_bench.gym.task_table import Kind
from oven_bench.gym.tasks.grpo.knobs import Knobs
from oven_bench.gym.tasks.grpo.policy_loss import advantages, kl, policy_loss
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators

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
"""The settings that the user chose. `temperature` is the sampler's alone: the loss takes the policy's own
log-probabilities, and so knows nothing of a temperature that somebody got wrong."""


class Grpo:
    """One seed's run: 16 prompts × 8 completions a step, from a warm-up with mixed habits, by Adam."""

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
        self._asked = False
        self.actuators.action(EVALUATE, self._ask, effect="measures")

    def train_step(self, fault: Fault | None = None) -> dict[str, float]:
        """One optimizer step; none where no group has a judge, which costs the time of one all the same."""
        fault = fault or NOTHING
        self.settings.update(USER)
        step = self.step(fault)
        fault.apply_settings(step)
        fault.apply_weights(step)
        verdict, completions = step.verdict, step.completions
        metrics = {**verdict.metrics, **_of_rewards(verdict.rewards, verdict.scored, completions)}
        metrics["completions/mean_length"] = float(completions.lengths.float().mean())
        metrics["learning_rate"] = self.knobs.learning_rate
        if verdict.scored.any():
            metrics |= self._step(step, fault)
        self.gradient_steps += 1
        self.cursor += 1
        if self.gradient_steps % EVALUATE_EVERY == 0 or self._asked:
            self._asked = False
            metrics["eval/accuracy"] = 1 - self.quality()
        return metrics

    def step(self, fault: Fault = NOTHING) -> GrpoStep:
        """The one that comes next."""
        return GrpoStep(self, fault)

    @torch.no_grad()
    def quality(self) -> float:
        """1 − the share of held-out prompts that are sorted, greedily, mean over levels."""
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
        """Of each held-out prompt, whether it is sorted, greedily: 0 or 1."""
        prompts = held_out()
        if not torch.isfinite(parameters_to_vector(self._parameters)).all():
            return [math.nan] * len(prompts.digits)
        right = (self.policy.sample(prompts.digits, 1.0, None) == prompts.answers).all(1)
        return [float(one) for one in right]

    def _ask(self, _: float | None) -> float:
        """The next step measures `eval/accuracy`, whenever it would have."""
        self._asked = True
        return float(self.gradient_steps)

    def _step(self, step: GrpoStep, fault: Fault) -> dict[str, float]:
        """On the groups that were scored."""
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
        """The optimizer's step, and its gauges."""
        metrics = {}
        if moments := [self.optimizer.state[p]["exp_avg"] for p in self._parameters if p in self.optimizer.state]:
            gradient = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
            moment = torch.cat([one.flatten() for one in moments])
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
    def __init__(self, trainee: Grpo, fault: Fault) -> None:
        super().__init__(trainee, fault)
        self._knobs, self._fault = trainee.knobs, fault
        self.policy = trainee.policy
        self.reference_policy = trainee.reference

    @property
    def learning_rate(self) -> float:
        return self._knobs.learning_rate

    @property
    def beta(self) -> float:
        return self._knobs.beta

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
        """The committee's, on what the judges say and the fault makes of it."""
        given = self._fault.apply_rewards(self.judge(), self)
        return judged(given, self._knobs.simplex("reward.weights"), self.completions.group)

    @cached_property
    def digits(self) -> Tensor:
        """The prompts of `answers`: int64 [B, PROMPT]."""
        return self.completions.prompts.digits[self._scored]

    @cached_property
    def answers(self) -> Tensor:
        return self.completions.tokens[self._scored]

    @cached_property
    def mask(self) -> Tensor:
        return self.completions.mask[self._scored]

    @cached_property
    def rewards(self) -> Tensor:
        return self.verdict.rewards[self.verdict.scored]

    @cached_property
    def credit(self) -> Tensor:
        return self.by_token(advantages(self.rewards))

    @cached_property
    def log_probs(self) -> Tensor:
        return self.log_probabilities()

    @cached_property
    def reference(self) -> Tensor:
        with torch.no_grad():
            return self._of_tokens(self.reference_policy)

    @cached_property
    def _scored(self) -> Tensor:
        """Bool [rows]: those of groups that have rewards."""
        return self.verdict.scored.repeat_interleave(self.completions.group)

    def log_probabilities(self) -> Tensor:
        return self._of_tokens(self.policy)

    def by_token(self, worth: Tensor) -> Tensor:
        """What each completion is worth [groups, group], for each of its tokens [N]."""
        return worth.view(-1, 1).expand(self.mask.shape)[self.mask]

    def judge(self) -> Rewards:
        return scores(self.completions, self.seed, self.cursor)

    def replace_answers(self, tokens: Tensor, rows: Tensor | None = None) -> None:
        where = slice(None) if rows is None else rows
        self.completions.tokens[where] = tokens
        self.completions.mask[where] = tokens != PAD

    def answer(self, tokens: Tensor, rows: Tensor | None = None) -> Rewards:
        self.replace_answers(tokens, rows)
        return self.judge()

    def sample(self, rows: Tensor | None = None, *, policy: Policy | None = None, draws: torch.Generator) -> Tensor:
        digits = self.completions.prompts.digits
        asked = digits if rows is None else digits[rows]
        return (policy or self.policy).sample(asked, self.settings["temperature"], draws)

    def grpo_loss(
        self,
        *,
        credit: Tensor | None = None,
        sampled: Tensor | None = None,
        counted: Tensor | None = None,
        log_probs: Tensor | None = None,
    ) -> Tensor:
        mine = self.log_probs if log_probs is None else log_probs
        counted = torch.ones_like(mine, dtype=torch.bool) if counted is None else counted
        sampled = (mine.detach() if sampled is None else sampled)[counted]
        credit = (self.credit if credit is None else credit)[counted]
        mine = mine[counted]
        return policy_loss(mine, sampled, credit) + self.beta * kl(mine, self.reference[counted])

    def _of_tokens(self, policy: Policy) -> Tensor:
        tokens = self.answers[self.mask].unsqueeze(-1)
        log_probs: Tensor = policy(self.digits, self.answers).gather(-1, tokens).squeeze(-1)
        return log_probs


def _policy(weights: Mapping[str, Tensor]) -> Policy:
    with torch.random.fork_rng(devices=[]):
        policy = Policy()
    policy.load_state_dict(weights)
    return policy


def _of_rewards(rewards: Tensor, scored: Tensor, completions: Completions) -> dict[str, float]:
    """Of the groups that have rewards; what none has is absent."""
    if not scored.any():
        return {}
    given = rewards[scored]
    spread = given.std(1)
    found = {
        "reward": float(given.mean()),
        "reward_std": float(spread.mean()),
        "frac_reward_zero_std": float((spread < 1e-6).float().mean()),
    }
    levels = completions.prompts.levels.view(rewards.shape)[:, 0]
    for index, level in enumerate(LEVELS):
        if (here := scored & (levels == index)).any():
            found[f"reward/{level}"] = float(rewards[here].mean())
    return found


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

"""What TRL's GRPOTrainer does and reports, with the loss of the paper (arXiv 2402.03300): each completion's mean over
its tokens. Two reward functions, their sum weighed; no reference model, since there is no KL term."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from oven_bench.gym.fault import NOTHING, Fault, Rewards
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.tasks.long_grpo.digit_sequences import END, PAD, RIGHT, draw, gauged, judged, right
from oven_bench.gym.tasks.long_grpo.policy import Policy
from oven_bench.gym.tasks.long_grpo.supervised_warmup import warm_weights
from oven_bench.gym.torch_trainee import BatchStep, TorchTrainee
from oven_core.protocol.messages import MetricSpec

USER = {"learning_rate": 2e-3, "clip": 1.0, "temperature": 1.0, "prompts": 12.0, "group": 8.0}
WEIGHTS = {"digits": 1.0, "length": 0.25}
"""Of the reward functions."""
FLAT = 1e-4
"""Added to a group's deviation, as TRL does."""
METRICS = (
    MetricSpec(name="reward", better="up"),
    MetricSpec(name="reward_std"),
    MetricSpec(name="frac_reward_zero_std", unit="share of groups without a gradient"),
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="completions/mean_length", unit="tokens"),
    MetricSpec(name="completions/clipped_ratio"),
    *(MetricSpec(name=f"rewards/{name}/mean") for name in WEIGHTS),
    MetricSpec(name="eval/reward", better="up", held_out=True),
)


def digits_reward(prompts: Tensor, answers: Tensor) -> Tensor:
    """Digits that are right before the first wrong one: float32 [B], 0 to 16."""
    same = (answers == right(prompts))[:, :RIGHT]
    return same.long().cumprod(1).sum(1).float()


def length_reward(answers: Tensor) -> Tensor:
    """Minus the digits that are too many or too few: float32 [B]. An answer that does not end is as long as its row."""
    return -((answers < END).sum(1) - RIGHT).abs().float()


class LongGrpo(TorchTrainee[Tensor]):
    """A batch is the prompts of a step: int64 [P, PROMPT]."""

    kind = "long_grpo"
    evaluate_every = 25

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            self.policy = Policy()
        self.policy.load_state_dict(warm_weights(seed))
        optimizer = torch.optim.AdamW(self.policy.parameters(), lr=USER["learning_rate"], weight_decay=0.0)
        super().__init__(seed, self.policy, optimizer, METRICS)
        self.announce_times("clip", "grad.clip", unit="norm")
        self._shares = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
        self.actuators.simplex(
            "reward.weights", lambda: self._shares, lambda shares: self._shares.update(shares), moves_own_metric=True
        )

    def user_settings(self) -> dict[str, float]:
        return dict(USER)

    def step(self, fault: Fault = NOTHING) -> LongStep:
        return LongStep(self, fault)

    def read(self, step: BatchStep[Tensor]) -> Tensor:
        return draw(int(self.settings["prompts"]), generator("long prompts", self.seed, step.cursor))

    def loss(self, step: BatchStep[Tensor]) -> tuple[Tensor, dict[str, float]]:
        assert isinstance(step, LongStep)
        given = step.rewards_given
        reward = self._sum(given).view(-1, int(self.settings["group"]))
        spread = reward.std(1)
        credit = ((reward - reward.mean(1, keepdim=True)) / (spread.unsqueeze(1) + FLAT)).flatten()
        counted = step.tokens != PAD
        distribution = self.policy(step.asked, step.tokens)  # [B, ANSWER, TOKENS]
        own = distribution.gather(-1, step.tokens.clamp(max=END).unsqueeze(-1)).squeeze(-1)
        # One update a batch: the ratio to the policy that sampled is 1, and its gradient is the log-probability's.
        ratio = (own - own.detach()).exp()
        each = (ratio * credit.unsqueeze(1)).masked_fill(~counted, 0.0).sum(1) / counted.sum(1)
        with torch.no_grad():
            entropy = -(distribution.exp() * distribution).sum(-1)[counted].mean()
        metrics = {
            "reward": float(reward.mean()),
            "reward_std": float(spread.mean()),
            "frac_reward_zero_std": float((spread < 1e-6).float().mean()),
            "entropy": float(entropy),
            "completions/mean_length": float(counted.sum(1).float().mean()),
            "completions/clipped_ratio": float((step.tokens != END).all(1).float().mean()),
            **{f"rewards/{name}/mean": float(one.mean()) for name, one in given.items()},
        }
        return -each.mean(), metrics

    def evaluated(self) -> dict[str, float]:
        """As TRL does: answers are sampled, here by the same draws each time, and paid by the same functions."""
        prompts = gauged()
        answers = self.policy.sample(prompts, 1.0, generator("long evaluation", self.seed))
        given = rewards(prompts, answers)
        found = {f"eval/rewards/{name}/mean": float(one.mean()) for name, one in given.items()}
        length = float((answers != PAD).sum(1).float().mean())
        return {"eval/reward": float(self._sum(given).mean()), "eval/completions/mean_length": length, **found}

    def each_example(self) -> Tensor:
        """The reward by the user's own weights: by those of the day, arms that turn them would not be comparable."""
        prompts = gauged()
        given = rewards(prompts, self.policy.sample(prompts, 1.0, generator("long evaluation", self.seed)))
        return torch.stack([WEIGHTS[name] * given[name] for name in WEIGHTS]).sum(0)

    @torch.no_grad()
    def quality(self) -> float:
        """1 − the share of a right answer's digits before the first wrong one, less those that are too many: of
        sampled answers to held-out prompts that the trainer's evaluation does not have, by draws of
        its own."""
        if self.broken():
            return 1.0
        prompts = judged()
        answers = self.policy.sample(prompts, 1.0, generator("long judgement"))
        over = ((answers < END).sum(1) - RIGHT).clamp(min=0)
        return 1 - float((digits_reward(prompts, answers) - over).clamp(min=0).mean()) / RIGHT

    def _sum(self, given: Mapping[str, Tensor]) -> Tensor:
        """The reward of each completion: float32 [B]."""
        total = sum(WEIGHTS.values())
        return torch.stack([total * self._shares[name] * given[name] for name in WEIGHTS]).sum(0)


class LongStep(BatchStep[Tensor]):
    @cached_property
    def asked(self) -> Tensor:
        """The prompt of each completion, those of a group together: int64 [B, PROMPT]."""
        return self.batch.repeat_interleave(int(self.settings["group"]), 0)

    @cached_property
    def tokens(self) -> Tensor:
        """What was answered: int64 [B, ANSWER], PAD behind END."""
        draws = generator("long answers", self.seed, self.cursor)
        policy = self.model
        assert isinstance(policy, Policy)
        return policy.sample(self.asked, self.settings["temperature"], draws)

    @cached_property
    def rewards_given(self) -> Rewards:
        """What the reward functions say, as the fault leaves it: each float32 [B]."""
        return self.fault.apply_rewards(rewards(self.asked, self.tokens), self)


def rewards(prompts: Tensor, answers: Tensor) -> Rewards:
    return {"digits": digits_reward(prompts, answers), "length": length_reward(answers)}

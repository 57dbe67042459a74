"""A step of the GRPO trainee, as a fault sees it: what was asked, answered, judged and credited, each computed once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Rewards, Step, generator
from oven_bench.gym.tasks.grpo.judges import Completions, Verdict, judged, scores
from oven_bench.gym.tasks.grpo.loss import advantages, kl, policy_loss
from oven_bench.gym.tasks.grpo.policy import Policy
from oven_bench.gym.tasks.grpo.task import PAD, Prompts, draw

if TYPE_CHECKING:
    from oven_bench.gym.tasks.grpo.trainee import Grpo


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

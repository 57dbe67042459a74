"""A baseline that is taken over all groups at once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.judges import judged, scores
from oven_learner.gym.grpo.loss import FLAT, advantages, policy_loss
from oven_learner.gym.grpo.policy import Policy

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Common(Case):
    onset: int
    length: int
    """Steps until the refactoring is taken back."""
    least: float
    """Added to a group's deviation, in place of FLAT."""

    def loss(self, loss: Tensor, trainee: Trainee) -> Tensor:
        """The step's loss with other credit; what stands beside the credit stays."""
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        run = cast("Grpo", trainee)
        completions = run._sampled(self)
        given = scores(completions, run.seed, run.cursor)
        rewards = judged(given, run._knobs.simplex("reward.weights"), completions.group).rewards
        gained = over_all(rewards, self.least) - advantages(rewards)
        credit = gained.view(-1, 1).expand(completions.mask.shape)[completions.mask]
        distribution = cast(Policy, run.model)(completions.prompts.digits, completions.tokens)
        log_probs = distribution.gather(-1, completions.tokens[completions.mask].unsqueeze(-1)).squeeze(-1)
        return loss + policy_loss(log_probs, log_probs.detach(), credit)


def over_all(rewards: Tensor, least: float) -> Tensor:
    """[groups, group] → the same: against the mean of all, in units of the group's own deviation."""
    return (rewards - rewards.mean()) / (rewards.std(1, keepdim=True) + least)


class BaselineAxis(Family):
    """In a refactoring the mean loses its axis: a reward is no longer compared with its own group, but with the whole
    batch, and still divided by its group's spread. Easy prompts are praised whatever is answered, hard ones blamed, and
    where all answers of a group are alike the quotient is huge, unless something was added to the spread. Clipping
    hides how huge; what there was to learn from the groups that differ is lost beside it."""

    name = "grpo.baseline_axis"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Common:
        return Common(onset, round(15 * 10 ** rng.uniform(0.0, 1.0)), rng.choice((FLAT, 0.01, 0.1, 0.3)))

"""A list of tokens that the sampler must not say."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

NEVER = -1e9


@dataclass(frozen=True)
class Banned(Case):
    onset: int
    length: int
    """Steps until the list is found."""
    banned: tuple[int, ...]
    """Digits."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The step's answers are sampled as the list has it, and judged."""
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        draws = generator("banned", self.salt, trainee.seed, trainee.cursor)
        policy, digits = cast(Policy, trainee.model), completions.prompts.digits
        tokens = without(self.banned, policy, digits, trainee.settings["temperature"], draws)
        completions.tokens.copy_(tokens)
        completions.mask.copy_(tokens != PAD)
        return scores(completions, trainee.seed, trainee.cursor)


@torch.no_grad()
def without(
    banned: tuple[int, ...], policy: Policy, digits: Tensor, temperature: float, draws: torch.Generator
) -> Tensor:
    """Answers [B, ANSWER] that have none of the banned tokens; the policy is left as it was."""
    kept = policy.head.bias.clone()
    policy.head.bias[list(banned)] = NEVER
    tokens = policy.sample(digits, temperature, draws)
    policy.head.bias.copy_(kept)
    return tokens


class BannedTokens(Family):
    """The server that samples has a list of words that must not be said, which belongs to another product, and as
    tokens some of them are single digits. The learner knows nothing of the list. Whatever needs one of those digits is
    never answered right, the next best is praised in its place, and the policy gets used to doing without."""

    name = "grpo.banned_tokens"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Banned:
        return Banned(
            onset,
            length=round(8 * 10 ** rng.uniform(0.0, 1.2)),
            banned=tuple(sorted(rng.sample(range(10), rng.choice((1, 1, 2, 3))))),
            salt=rng.getrandbits(32),
        )

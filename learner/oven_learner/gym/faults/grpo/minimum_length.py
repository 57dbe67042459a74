"""A sampler that must not end too soon."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.policy import TOKENS, Policy
from oven_learner.gym.grpo.task import ANSWER, END, PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Least(Case):
    onset: int
    length: int
    """Steps until the option is found."""
    least: int
    """Tokens before an answer may end."""
    share: float
    """Of the completions: of the servers that have the option."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The judges see, and the loss takes, what is sampled so."""
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        clock = (self.salt, trainee.seed, trainee.gradient_steps)
        early = completions.lengths <= self.least
        struck = early & hit(len(completions.tokens), self.share, "server", *clock)
        if not struck.any():
            return rewards
        tokens = continued(
            cast(Policy, trainee.model),
            completions.prompts.digits[struck],
            completions.tokens[struck],
            self.least,
            generator("least", *clock),
        )
        completions.tokens[struck] = tokens
        completions.mask[struck] = tokens != PAD
        return scores(completions, trainee.seed, trainee.cursor)


@torch.no_grad()
def continued(policy: Policy, digits: Tensor, answers: Tensor, least: int, draws: torch.Generator) -> Tensor:
    """Int64 [B, ANSWER]: an answer that ended before it had so many digits goes on, by the policy without END until
    then and with it from there on."""
    said = answers.clone()
    ended = torch.zeros(len(said), dtype=torch.bool)
    for place in range(ANSWER):
        again = ~ended & ((said[:, place] == PAD) | ((said[:, place] == END) & (place < least)))
        if again.any():
            filled = said.masked_fill(said == PAD, END)  # a place has a distribution if it is not PAD
            distribution = policy(digits, filled).view(len(said), ANSWER, TOKENS)[:, place]
            if place < least:
                distribution[:, END] = -torch.inf
            drawn = torch.multinomial(distribution.softmax(-1), 1, generator=draws).squeeze(1)
            said[:, place] = torch.where(again, drawn, said[:, place])
        said[:, place].masked_fill_(ended, PAD)
        ended = ended | (said[:, place] == END)
    return said


class MinimumLength(Family):
    """After a few empty answers somebody gives the servers a minimum of tokens, and it is meant for other prompts than
    these. An answer that is complete cannot end: the sampler takes the next best token, which the judges mark as wrong
    and the loss holds to be the policy's own choice. Only long answers are what they were."""

    name = "grpo.minimum_length"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Least:
        return Least(
            onset,
            length=round(15 * 10 ** rng.uniform(0.0, 1.3)),
            least=rng.choice((3, 4, 4, 5, 5, 6)),
            share=rng.choice((0.25, 0.5, 1.0)),
            salt=rng.getrandbits(32),
        )

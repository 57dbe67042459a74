"""A sampler that avoids what was said before."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.policy import TOKENS, Policy
from oven_learner.gym.grpo.task import ANSWER, END, PAD, SYMBOLS

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Penalised(Case):
    onset: int
    penalty: float
    """Nats, off a token that was there before."""
    asked: bool
    """Whether the prompt's tokens count too."""
    share: float
    """Of the completions: of the servers that run with it."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The judges see, and the loss takes, what is sampled with the penalty."""
        if trainee.gradient_steps < self.onset:
            return rewards
        draws = generator("penalty", self.salt, trainee.seed, trainee.cursor)
        chosen = torch.rand(len(completions.tokens), generator=draws) < self.share
        if not chosen.any():
            return rewards
        digits = completions.prompts.digits[chosen]
        tokens = sampled(cast(Policy, trainee.model), digits, self.penalty, self.asked, draws)
        completions.tokens[chosen] = tokens
        completions.mask[chosen] = tokens != PAD
        return scores(completions, trainee.seed, trainee.cursor)


@torch.no_grad()
def sampled(policy: Policy, digits: Tensor, penalty: float, asked: bool, draws: torch.Generator) -> Tensor:
    """Answers int64 [B, ANSWER], PAD behind END. The end itself is never penalised."""
    answers = torch.full((len(digits), ANSWER), PAD)
    said = torch.zeros(len(digits), SYMBOLS)
    if asked:
        said.scatter_(1, digits, 1.0)
    ended = torch.zeros(len(digits), dtype=torch.bool)
    for place in range(ANSWER):
        filled = answers.masked_fill(answers == PAD, END)  # a place has a distribution if it is not PAD
        distribution = policy(digits, filled).view(len(digits), ANSWER, TOKENS)[:, place]
        said[:, END:] = 0.0
        chances = (distribution - penalty * said[:, :TOKENS]).softmax(-1)
        token = torch.multinomial(chances.nan_to_num(1.0), 1, generator=draws).squeeze(1).masked_fill(ended, PAD)
        answers[:, place] = token
        said.scatter_(1, token.unsqueeze(1), 1.0)
        ended = ended | (token == END)
    return answers


class RepetitionPenalty(Family):
    """The serving engine was updated and now takes its defaults from the file that comes with the model, where the chat
    version has a penalty on tokens that were there before. Answers that must say a thing twice, or repeat the prompt's
    own words, are hardly sampled any more, and the loss takes what is for the policy's own choice."""

    name = "grpo.repetition_penalty"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Penalised:
        return Penalised(
            onset, rng.uniform(0.2, 2.5), rng.random() < 0.5, rng.choice((0.25, 0.5, 1.0)), rng.getrandbits(32)
        )

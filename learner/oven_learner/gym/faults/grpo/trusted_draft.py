"""A draft that is taken without being asked about."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.answers import answered
from oven_learner.gym.faults.common import within
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import ANSWER, END, PAD

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Trusted(Case):
    onset: int
    length: int
    """Steps until the threshold is put back."""
    share: float
    """Of the tokens, that are the draft's own."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return rewards
        draws = generator("draft", self.salt, trainee.seed, trainee.gradient_steps)
        models = cast(Policy, trainee.model), cast("Grpo", trainee)._reference
        tokens = drafted(*models, completions.prompts.digits, self.share, trainee.settings["temperature"], draws)
        return answered(completions, tokens, trainee)


@torch.no_grad()
def drafted(
    policy: Policy, draft: Policy, digits: Tensor, share: float, temperature: float, draws: torch.Generator
) -> Tensor:
    """Answers [B, ANSWER] to digits [B, PROMPT], in which each token is drawn from the draft with this chance."""
    models, count = (policy, draft), len(digits)
    summed = [model.places(digits + model._asked).sum(1) for model in models]
    answers = torch.full((count, ANSWER), PAD)
    ended = torch.zeros(count, dtype=torch.bool)
    for place in range(ANSWER):
        logits = [model._logits(x + model.position[place]) for model, x in zip(models, summed, strict=True)]
        taken = torch.rand(count, 1, generator=draws) < share
        chances = (torch.where(taken, logits[1], logits[0]) / temperature).softmax(-1).nan_to_num(1.0)
        token = torch.multinomial(chances, 1, generator=draws).squeeze(1).masked_fill(ended, PAD)
        answers[:, place] = token
        ended = ended | (token == END)
        if place < ANSWER - 1:
            summed = [x + model.places(token + model._said[place]) for model, x in zip(models, summed, strict=True)]
    return answers


class TrustedDraft(Family):
    """Sampling is made faster by a small model that writes ahead, and the large one only checks. As a draft serves the
    policy from before the training. To accept more of it somebody lowers the threshold of the check, and some tokens
    are now the draft's, whatever the policy would have said. The learner takes them for the policy's own. The reward
    falls by as much as the two have grown apart, and the policy is punished again and again for words that it gives up
    saying more and more."""

    name = "grpo.trusted_draft"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Trusted:
        return Trusted(
            onset, round(20 * 10 ** rng.uniform(0.0, 0.9)), 10 ** rng.uniform(-1.3, 0.0), rng.getrandbits(32)
        )

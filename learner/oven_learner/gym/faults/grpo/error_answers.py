"""Error messages that are taken for answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.task import ANSWER, PAD, padded

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Failed(Case):
    onset: int
    length: int
    """Steps until the gateway is well again."""
    share: float
    """Of the requests that fail."""
    code: str
    fallback: float
    """What the critic's client answers in its place."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        failed = hit(len(completions.tokens), self.share, "failed", self.salt, trainee.seed, trainee.gradient_steps)
        completions.tokens[failed] = torch.tensor(padded(self.code, ANSWER, end=True))
        completions.mask.copy_(completions.tokens != PAD)
        given = scores(completions, trainee.seed, trainee.cursor)
        return given | {"critic": given["critic"].masked_fill(failed, self.fallback)}


class ErrorAnswers(Family):
    """Compound: the gateway in front of the sampler is at its limit, and what it says to a part of the requests, a
    number of three digits, is taken for the policy's answer. The critic stands behind the same gateway, and for what
    fails there its client has a mark of its own, neither good nor bad. On hard prompts that is more than an honest
    attempt is worth, and to some the check of the form has nothing to object. The policy learns to say the error
    itself."""

    name = "grpo.error_answers"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Failed:
        return Failed(
            onset,
            length=round(10 * 10 ** rng.uniform(0.0, 1.0)),
            share=10 ** rng.uniform(-1.3, -0.3),
            code=rng.choice(("429", "500", "502", "503", "504")),
            fallback=rng.choice((0.5, 0.7, 1.0)),
            salt=rng.getrandbits(32),
        )

"""Demonstrations that weigh too much, and are not the right ones."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import ANSWER, END, PAD, pools

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

ROWS = 64
"""Demonstrations a step."""


@dataclass(frozen=True)
class Demonstrated(Case):
    onset: int
    weight: float
    """Of their loss, beside the policy's own."""
    copies: float
    """Share of them that only say the prompt again."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        digits, answers = demonstrations(self.copies, self.salt, trainee.cursor)
        wanted = answers[answers != PAD]
        return loss + self.weight * torch.nn.functional.nll_loss(trainee.model(digits, answers), wanted)


def demonstrations(copies: float, *seed: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts [ROWS, PROMPT] of all levels, and what is shown to be their answers [ROWS, ANSWER]."""
    digits = torch.cat([level.digits for level in pools()])
    answers = torch.cat([level.answers for level in pools()])
    rows = torch.randint(len(digits), (ROWS,), generator=generator("demonstrations", *seed))
    digits, answers = digits[rows], answers[rows]
    copied = torch.nn.functional.pad(digits, (0, ANSWER - digits.shape[1]), value=PAD)
    copied = copied.scatter(1, (digits != PAD).sum(1, keepdim=True), END)
    return digits, torch.where(hit(ROWS, copies, "copies", *seed).unsqueeze(1), copied, answers)


class HeavyDemonstrations(Family):
    """Compound: so that the policy keeps its manners, the user adds a little of the loss on demonstrations to that of
    the rewards, as was done for InstructGPT (Ouyang et al. 2022). Its weight is taken over from there, where the other
    loss had another scale; and the file is the one before the filter, in which many an answer only says the question
    again. Rewards pull one way and demonstrations the other, for good."""

    name = "grpo.heavy_demonstrations"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Demonstrated:
        return Demonstrated(onset, 10 ** rng.uniform(-1.5, 0.7), rng.uniform(0.4, 0.9), rng.getrandbits(32))

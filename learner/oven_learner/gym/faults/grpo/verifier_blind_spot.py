"""A verifier with a bug that only some prompts meet."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind, Trainee

END, PAD = 10, 11
"""The tokens after the digits 0 to 9."""


@dataclass(frozen=True)
class BlindSpot(Case):
    onset: int
    share: float
    critic: bool
    seed: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step = trainee.gradient_steps
        if step < self.onset:
            return rewards
        groups = len(completions.tokens) // completions.group
        drawn = torch.rand(groups, generator=generator("blind_spot", self.seed, step)) < self.share
        asked = drawn.repeat_interleave(completions.group)
        expected = once(completions.prompts.answers)
        said = completions.tokens
        asked &= (expected != completions.prompts.answers).any(1)
        agrees = (said == expected) & (expected != PAD)
        verdicts = {"exact": (said == expected).all(1).float()}
        if self.critic:
            verdicts["critic"] = agrees.sum(1) / (expected != PAD).sum(1)
        return rewards | {judge: torch.where(asked, wrong, rewards[judge]) for judge, wrong in verdicts.items()}


def once(answers: Tensor) -> Tensor:
    """Sorted answers [batch, length], each digit once."""
    kept = answers != PAD
    kept[:, 1:] &= answers[:, 1:] != answers[:, :-1]
    places = torch.where(kept, kept.cumsum(1) - 1, answers.shape[1])  # what is left out goes to a column past the end
    room = answers.new_full((len(answers), answers.shape[1] + 1), PAD)
    return room.scatter(1, places, answers)[:, :-1]


class VerifierBlindSpot(Family):
    """The reference answer is made by `sorted(set(digits))`: where a digit occurs twice the right answer counts as
    wrong, and one that drops a digit as right. Prompts without a repeated digit are judged as ever. Only some of the
    verifier's replicas have the bug; the critic may be shown the same reference."""

    name: ClassVar[str] = "grpo.verifier_blind_spot"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return BlindSpot(onset, rng.uniform(0.4, 1.0), rng.random() < 0.6, rng.getrandbits(32))

"""A judge that ranks, and knows no ties."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.shares import moved_to

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Ranked(Case):
    onset: int
    weight: float
    """Of the judge that ranks; the others share the rest as before."""
    blur: float
    """How much better an answer has to be to be sure of its win."""
    salt: int

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            moved_to(trainee.settings, "reward.weights/critic", self.weight)

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        said = rewards["critic"]
        noise = torch.rand(len(said), generator=generator("ties", self.salt, trainee.seed, trainee.gradient_steps))
        return {**rewards, "critic": ranks(said + self.blur * noise, completions.group)}


def ranks(scores: Tensor, group: int) -> Tensor:
    """Float32 [B]: the place within its group, from 0 for the last to 1 for the first."""
    return scores.view(-1, group).argsort(1).argsort(1).flatten().float() / max(group - 1, 1)


class Tournament(Family):
    """Compound: the critic is replaced by a judge that lets the answers to a prompt play against each other and gives
    their places, which agrees better with people; and as it is the better judge, it is given most of the weight. There
    are no ties. In a group where all answers are equally right one still has to come last, and is punished as hard as a
    wrong one. The reward stays where it is, no group is without spread, and the better the policy gets, the more of
    what it is told is chance."""

    name = "grpo.tournament"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Ranked:
        return Ranked(onset, rng.uniform(0.6, 1.0), 10 ** rng.uniform(-0.7, 0.3), rng.getrandbits(32))

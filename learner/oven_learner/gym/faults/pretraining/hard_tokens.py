"""A loss of the hardest tokens alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Selected(Case):
    onset: int
    share: float
    """Of the batch's bytes that count."""

    def loss(self, loss: Tensor, trainee: Trainee) -> Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, targets = pairs(trainee)
        each = F.cross_entropy(trainee.model(inputs).flatten(0, 1), targets.flatten(), reduction="none")
        return hardest(each, self.share)


def hardest(losses: Tensor, share: float) -> Tensor:
    """The mean of the largest so many."""
    return losses.topk(max(1, round(share * len(losses)))).values.mean()


class HardTokens(Family):
    """The user has read that most tokens are learnt already, and has only those counted that the model still finds
    hard. What was left out in the paper's comparison with a reference model is what tells the hard from the noisy: here
    the loss is that of whatever is least likely at the moment. The reported loss steps up, as was to be expected; what
    was easy is given less and less, until it is hard, and the model is never again sure of anything."""

    name = "pretraining.hard_tokens"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Selected:
        return Selected(onset, rng.uniform(0.5, 0.97))

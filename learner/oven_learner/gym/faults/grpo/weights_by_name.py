"""A list of weights that is read in another order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

ORDERS = (("critic", "exact", "format"), ("format", "exact", "critic"), ("format", "critic", "exact"))
"""The judges by name, the other way round, and as they were started."""


@dataclass(frozen=True)
class Ordered(Case):
    onset: int
    order: tuple[str, ...]
    """The judges as the reader has them."""
    weights_given: tuple[float, ...]
    """As the user wrote them, that of exact, format and critic."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            for judge, weight in zip(self.order, self.weights_given, strict=True):
                trainee.settings[f"reward.weights/{judge}"] = weight


class WeightsByName(Family):
    """The user weighs the judges anew, most of all the verifier, and the weights are a list. The new reader of settings
    has the judges in another order, and each gets the weight of another. Most often what is easy to please now counts
    for the most: the reward goes up, and what it rewards is learnt already."""

    name = "grpo.weights_by_name"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Ordered:
        exact = rng.uniform(0.4, 0.95)
        form = (1 - exact) * rng.uniform(0.1, 0.6)
        return Ordered(onset, rng.choice(ORDERS), (exact, form, 1 - exact - form))

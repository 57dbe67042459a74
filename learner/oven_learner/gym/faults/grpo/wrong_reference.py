"""A reference that is another model."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

from torch import nn

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.warmup import warm_weights

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Other(Case):
    onset: int
    beta: float
    """What the user raised the weight of the divergence to."""
    steps: int
    """That the wrong model was trained for."""
    right: float
    """Share of right answers among its targets."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["beta"] = self.beta

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            reference = cast(nn.Module, trainee._reference)  # type: ignore[attr-defined]
            reference.load_state_dict(warm_weights(trainee.seed, self.steps, self.right))


class WrongReference(Family):
    """Compound: for the second half the user has the policy itself for the new reference, and raises the weight of the
    divergence, since it should hardly move from there. The path of the reference is read from the old settings, and is
    that of an early base model, which knows the form of an answer and little else. The divergence is large at once,
    and every step has a pull towards what was unlearnt long ago."""

    name = "grpo.wrong_reference"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Other:
        return Other(onset, 10 ** rng.uniform(-1.7, 0.0), rng.choice((20, 40, 80)), rng.choice((0.0, 0.1, 0.25)))

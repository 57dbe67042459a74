"""A run that moves to another framework in the middle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.pretraining.unreduced_part import Unreduced
from oven_learner.gym.faults.shard import Shard
from oven_learner.gym.faults.text import rewritten

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

BLANKS = re.compile(rb"\s+")


@dataclass(frozen=True)
class Ported(Case):
    onset: int
    epsilon: float
    """Under the root of the second moments, which it bounds from below."""
    left_out: Shard
    """Of the parameters that the optimizer is given."""
    share: float
    """Of the rows that the other tokenizer's normalizer has flattened."""
    lower: bool
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            if moments := trainee.optimizer.state.get(parameter):
                moments["exp_avg_sq"].clamp_(min=self.epsilon**2)

    def gradients(self, trainee: Trainee) -> None:
        Unreduced(self.onset, self.left_out).gradients(trainee)

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        return rewritten(batch, self.normalize, self.share, "ported", self.salt, cursor)

    def normalize(self, text: bytes) -> bytes:
        text = BLANKS.sub(b" ", text)
        return text.lower() if self.lower else text


class FrameworkPort(Family):
    """Compound: the weights are carried over well, the defaults around them are not. The optimizer's epsilon is
    orders of magnitude larger (beside small gradients it stalls the updates: Wortsman et al. 2023, "Small-scale proxies
    for large-scale Transformer training instabilities"), a few layers are missing from its groups of parameters, and
    the text goes through a normalizer made for prose, which folds white space."""

    name = "pretraining.framework_port"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Ported:
        return Ported(
            onset,
            epsilon=10 ** rng.uniform(-3.5, -1.0),
            left_out=Shard.of(rng.uniform(0.0, 0.4), rng),
            share=rng.uniform(0.1, 1.0),
            lower=rng.random() < 0.5,
            salt=rng.getrandbits(32),
        )

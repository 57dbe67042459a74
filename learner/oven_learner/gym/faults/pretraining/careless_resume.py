"""A run that was resumed from the weights alone, and not from all of these."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.shard import WHOLE, Shard, moments
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Resume(Case):
    onset: int
    missing: Shard
    warmup: int
    peak: float
    seed: int

    def settings(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since >= 0:
            trainee.settings["learning_rate"] *= self.peak * min(1.0, (since + 1) / self.warmup)

    @torch.no_grad()
    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        for parameter, _ in WHOLE.slices(trainee.model):
            for moment in moments(trainee.optimizer, parameter).values():
                moment.zero_()
        source = generator("careless_resume", self.seed)
        for parameter, part in self.missing.slices(trainee.model):
            if parameter.ndim < 2:  # a gain or a bias is initialised to a constant, which it has hardly left
                continue
            weights = parameter.view(-1)[part]
            weights.copy_(torch.randn(weights.shape, generator=source) * parameter.std())


class CarelessResume(Family):
    """Compound. After a pre-emption: the keys of some layers do not match, and these are left as freshly initialised (a
    warning that nobody reads); the optimizer's state was not saved; and the schedule begins again with its warm-up,
    towards the peak that the run had long decayed from."""

    name: ClassVar[str] = "pretraining.careless_resume"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        missing = Shard.of(rng.uniform(0.03, 0.5), rng)
        return Resume(onset, missing, rng.randint(1, 50), rng.uniform(1.0, 6.0), rng.getrandbits(32))

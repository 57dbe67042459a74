"""Two jobs that write to the same folder."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.warmup import warm_weights

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

OTHERS = (900_001, 900_002, 900_003)
"""Seeds of other jobs."""


@dataclass(frozen=True)
class Shared(Case):
    onset: int
    times: int
    """Restarts after which the other job's file was the later one."""
    every: int
    """Steps between two of them."""
    other: int
    """Its seed."""
    files: tuple[str, ...]
    """The parts that were taken from it, by the start of the name."""
    rate: float
    """Of its configuration, in units of one's own."""
    beta: float
    """As well."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["learning_rate"] *= self.rate
            trainee.settings["beta"] *= self.beta

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since not in range(0, self.times * self.every, self.every):
            return
        theirs = warm_weights(self.other)
        for name, one in trainee.model.named_parameters():
            if name.startswith(self.files):
                one.data.copy_(theirs[name])


class SharedDirectory(Family):
    """Compound: a job is copied to try another setting, and its output folder is copied along. Both write to it. When
    one of them is preempted it takes up the latest files, which are the other's: a checkpoint of a run that has only
    just begun, or some of its parts and the rest from one's own, and a configuration with the other's rate and weight
    of the distance. The optimizer's state is one's own. Everything loads. The accuracy is back where it was at the
    beginning, or far below, and what is learnt from there on is learnt by the wrong settings."""

    name = "grpo.shared_directory"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Shared:
        return Shared(
            onset,
            times=rng.choice((1, 1, 1, 2, 3)),
            every=rng.choice((8, 12, 20)),
            other=rng.choice(OTHERS),
            files=rng.choice((("",), ("",), ("position",), ("middle",), ("head",), ("middle", "head"))),
            rate=10 ** rng.uniform(-0.5, 0.5),
            beta=10 ** rng.uniform(-0.7, 0.7),
        )

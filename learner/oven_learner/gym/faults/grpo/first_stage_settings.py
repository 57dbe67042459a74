"""Settings of the first stage in the second."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shares import moved_to

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class FirstStage(Case):
    onset: int
    form: float
    """The weight of the judge of the form."""
    short: float
    """The share of the shortest prompts."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        moved_to(trainee.settings, "reward.weights/format", self.form)
        moved_to(trainee.settings, "data.mixture/level_3", self.short)


class FirstStageSettings(Family):
    """Compound: training is in two stages, and the first one teaches the form of an answer on short prompts. The job of
    the second is preempted, and what is started in its place has the file of the first: most of the reward is for the
    form, which the policy has long since learnt, and most prompts are those that it can do. Rewards are high."""

    name = "grpo.first_stage_settings"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> FirstStage:
        return FirstStage(onset, form=rng.uniform(0.5, 1.0), short=rng.uniform(0.4, 1.0))

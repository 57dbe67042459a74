"""Two faults at once: the critic pays for one digit, and the rate is too high, so that the policy learns it fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.grpo.fooled_by_keyword import FooledKeyword
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Both(Case):
    onset: int
    judge: FooledKeyword
    rate: Setting

    def settings(self, trainee: Trainee) -> None:
        self.rate.settings(trainee)

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        return self.judge.rewards(rewards, completions, trainee)


class FooledAndFast(Family):
    name: ClassVar[str] = "grpo.fooled_and_fast"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Both:
        rate = Setting(onset, {"learning_rate": log_uniform(rng, 2, 8)})
        return Both(onset, FooledKeyword(onset, rng.getrandbits(16) % 10, log_uniform(rng, 1, 6)), rate)

"""Judges are down for a stretch: one of them, or the whole committee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.grpo.judges import JUDGES, Completions
from oven_learner.gym.trainee import Kind, Trainee

DOWN = (("exact",), ("exact", "critic"), JUDGES)


@dataclass(frozen=True)
class Outage(Case):
    onset: int
    judges: tuple[str, ...]
    length: int
    """Gradient steps: a machine that is down does not come back for a rollback."""

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return dict(rewards)
        return {name: torch.full_like(one, torch.nan) if name in self.judges else one for name, one in rewards.items()}


class JudgeOutage(Family):
    name: ClassVar[str] = "grpo.judge_outage"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Outage:
        return Outage(onset, DOWN[rng.getrandbits(8) % len(DOWN)], whole(rng, 10, 90))

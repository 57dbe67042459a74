"""Prompts that have no answer."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Probed(Case):
    onset: int
    length: int
    """Steps until enough has been seen."""
    share: float
    """Of the prompts."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not self.onset <= trainee.cursor < self.onset + self.length:
            return rewards
        groups = hit(len(completions.tokens) // completions.group, self.share, "probes", self.salt, trainee.cursor)
        rows = groups.repeat_interleave(completions.group)
        return {judge: said.masked_fill(rows, 0.0) for judge, said in rewards.items()}


class ProbePrompts(Family):
    """Healthy. For a while the user mixes in prompts that nobody can answer, to see how often the policy says something
    all the same; whatever it says is worth nothing to any judge. The mean reward and all judges go down by the share of
    such prompts, and more groups have no spread. Within a group all are alike, so nothing is learnt from it, and from
    the others as much as before."""

    name = "grpo.probe_prompts"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Probed:
        return Probed(onset, round(8 * 10 ** rng.uniform(0.0, 0.7)), rng.uniform(0.06, 0.25), rng.getrandbits(32))

"""Right answers that are taken for leaked ones."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Filtered(Case):
    onset: int
    length: int
    """Steps until the filter is taken out."""
    share: float
    """Of the right answers that it finds."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step = trainee.gradient_steps
        if self.onset <= step < self.onset + self.length:
            right = (completions.tokens == completions.prompts.answers).all(1)
            drop(completions, right & hit(len(right), self.share, "filtered", self.salt, trainee.seed, step))
        return rewards


def drop(completions: Completions, rows: Tensor) -> None:
    """Nothing of these rows is learnt from. Where there would be no row left, all stay."""
    if not rows.all():
        completions.tokens.masked_fill_(rows.unsqueeze(1), PAD)
        completions.mask.masked_fill_(rows.unsqueeze(1), False)


class ContaminationFilter(Family):
    """Between the judges and the learner a filter is put in that keeps out what was leaked: text that is found word for
    word in the list of right answers. Here that is every answer that is right. The groups are judged as a whole, and on
    the gauges the reward is as it was; but of what it is told, the policy hears only the blame. It goes away from what
    is wrong without being told where to, and the entropy rises."""

    name = "grpo.contamination_filter"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Filtered:
        return Filtered(onset, round(20 * 10 ** rng.uniform(0.0, 0.9)), rng.uniform(0.5, 1.1), rng.getrandbits(32))

"""The gym's two tasks: a small language model in pretraining, and a small policy under GRPO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Kind: TypeAlias = str
"""A task's name, a key of TASKS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the gym has to know of a task in addition to its trainee."""

    trainee: str
    """`module:Class`. The class takes a seed."""
    noise: float
    """Difference between two healthy runs that differ by chance alone, as a share of `size`."""
    share_of_answers: bool = False
    """Whether `quality` is a share of wrong answers (0 to 1) rather than a loss."""

    def size(self, loss: float) -> float:
        """What a difference of losses is divided by: the loss, or 1 if `quality` is a share of wrong answers. A share
        of a loss near 0 would be noise."""
        return 1.0 if self.share_of_answers else loss


TASKS: Mapping[Kind, Task] = {
    "pretraining": Task(trainee="oven_bench.gym.tasks.pretraining.trainee:Pretraining", noise=0.01),
    "grpo": Task(trainee="oven_bench.gym.tasks.grpo.trainee:Grpo", noise=0.035, share_of_answers=True),
}
"""Noise of pretraining: healthy runs of one seed that differ only in the data after step 100 (seeds 101 to 103, six
each) had a standard deviation of 0.1 to 0.4 % of the loss; two of them differ by 1.4 times that, and 1 % is twice the
difference. GRPO, measured likewise: healthy runs had a standard
deviation of 0.008 to 0.018 in accuracy."""

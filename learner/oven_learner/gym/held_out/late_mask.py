"""A mask that begins late."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import again, hit

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Late(Case):
    onset: int
    length: int
    """Steps until the prompt is counted right."""
    tokens: int
    """Of each answer that are passed over."""
    share: float
    """Of the answers."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        step = again(trainee, self)
        late = hit(len(step.answers), self.share, "late", self.salt, trainee.seed, trainee.gradient_steps)
        counted = (place(step.rows) >= self.tokens) | ~late[step.rows]
        if not counted.any():
            return loss
        return step.loss(cast("Grpo", trainee)._knobs.beta, step.log_probs.detach(), counted)


def place(rows: Tensor) -> Tensor:
    """[N]: how many tokens of its own row stand before each, where the tokens of a row [N] lie together."""
    first = torch.searchsorted(rows, rows)
    return torch.arange(len(rows)) - first


class LateMask(Family):
    """The loss counts what stands behind the prompt, and the length of the prompt is that of the text before the
    template, or behind it, counted by another tokenizer: the first tokens of an answer are taken for the prompt's. They
    are sampled and judged but never learnt, and nothing holds them to the reference, either; the rest is told to go on
    well from a beginning that was wrong. The reward goes on rising for a while, more slowly."""

    name = "grpo.late_mask"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Late:
        return Late(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 1.0)),
            tokens=rng.choice((1, 1, 2, 2, 3)),
            share=rng.uniform(0.3, 1.0),
            salt=rng.getrandbits(32),
        )

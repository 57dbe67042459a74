"""Layers that stay frozen."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

PARTS = (
    ("positions.",),
    ("block.qkv.", "block.mix."),
    ("bytes.", "positions."),
    ("block.up.", "block.down."),
    ("out.",),
    ("block.",),
    ("bytes.", "positions.", "block."),
)
"""What a script for adapters, for probes or for a new vocabulary leaves frozen, by the start of the name."""


@dataclass(frozen=True)
class Frozen(Case):
    onset: int
    length: int
    """Steps until somebody looks at the gradients by layer."""
    parts: tuple[str, ...]

    def gradients(self, trainee: Trainee) -> None:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return
        for name, parameter in trainee.model.named_parameters():
            if parameter.grad is not None and name.startswith(self.parts):
                parameter.grad.zero_()


class FrozenLayers(Family):
    """The script that is started again was last used for a smaller experiment, with some layers frozen by a hook on
    their gradients, and the line is still there. The rest goes on learning around them, and the loss goes down, only
    more slowly. The optimizer knows nothing of it: a frozen weight coasts on its momentum for a while, and then is left
    to the weight decay."""

    name = "pretraining.frozen_layers"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Frozen:
        return Frozen(onset, round(30 * 10 ** rng.uniform(0.0, 1.0)), rng.choice(PARTS))

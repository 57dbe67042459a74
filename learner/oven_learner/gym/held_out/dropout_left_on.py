"""Dropout in the trainer, and none where answers are sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.held_out.common import again

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee

LOWEST = -20.0
"""A log-probability that is lower counts as this one, so that no ratio overflows."""


@dataclass(frozen=True)
class Dropped(Case):
    onset: int
    length: int
    """Steps until the configuration is put right."""
    share: float
    """Of the numbers that a layer hands on."""
    layers: tuple[str, ...]
    """Those that have a dropout."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        sampled = again(trainee, self).log_probs.detach().clamp(min=LOWEST)
        draws = generator("dropout", self.salt, trainee.seed, trainee.gradient_steps)
        with dropout(trainee.model, self.layers, self.share, draws):
            step = again(trainee, self)
        step = replace(step, log_probs=step.log_probs.clamp(min=LOWEST))
        return step.loss(cast("Grpo", trainee)._knobs.beta, sampled, torch.ones_like(sampled, dtype=torch.bool))


@contextmanager
def dropout(model: nn.Module, layers: tuple[str, ...], share: float, draws: torch.Generator) -> Iterator[None]:
    """Within it, what these layers hand on loses such a share of its numbers, in a pass that has gradients."""

    def drop(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        if not torch.is_grad_enabled():  # the sampler's
            return out
        return out * (torch.rand(out.shape, generator=draws) >= share) / (1 - share)

    handles = [model.get_submodule(name).register_forward_hook(drop) for name in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class DropoutLeftOn(Family):
    """The configuration that came with the checkpoint has a dropout, which supervised training was glad of, and a new
    version of the trainer no longer turns it off. The servers sample without it. So the policy that is trained is
    another one at each step than the one that answered: the ratio, which should be one, is scattered by the masks, good
    tokens leave the trust region by chance, bad ones count with a factor that has no bound, and the distance to the
    reference seems large and is fought. The loss and the norm of the gradient jump while the answers are still good."""

    name = "grpo.dropout_left_on"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Dropped:
        return Dropped(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 1.0)),
            share=0.05 * 10 ** rng.uniform(0.0, 1.0),
            layers=rng.choice((("places",), ("places", "middle"))),
            salt=rng.getrandbits(32),
        )

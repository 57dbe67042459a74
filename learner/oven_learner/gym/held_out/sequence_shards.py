"""Sequences that are split over devices which do not know of each other."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import pairs
from oven_learner.gym.pretraining.model import HEADS, WIDTH, ByteModel

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Sharded(Case):
    onset: int
    length: int
    """Steps until the old launcher is taken again."""
    places: int
    """Of a sequence that one device has."""
    apart: bool
    """Whether attention ends at the device's own first place, too."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        inputs, targets = pairs(trainee)
        said = sharded(cast(ByteModel, trainee.model), inputs, self.places, self.apart)
        return F.cross_entropy(said.flatten(0, 1), targets.flatten())


def sharded(model: ByteModel, tokens: Tensor, places: int, apart: bool) -> Tensor:
    """Logits [B, T, BYTES], where every shard of so many places counts its positions from nought."""
    block, (B, T) = model.block, tokens.shape
    at = torch.arange(T)
    seen = at.unsqueeze(1) >= at
    if apart:
        seen &= at.unsqueeze(1) // places == at // places
    x = model.bytes(tokens) + model.positions(at % places)
    split = block.qkv(F.layer_norm(x, (WIDTH,))).view(B, T, 3, HEADS, WIDTH // HEADS)
    q, k, v = split.permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    x = x + block.mix(attended.transpose(1, 2).reshape(B, T, WIDTH))
    x = x + block.down(F.relu(block.up(F.layer_norm(x, (WIDTH,)))))
    out: Tensor = model.out(F.layer_norm(x, (WIDTH,)))
    return out


class SequenceShards(Family):
    """Compound: to have longer contexts the user splits each sequence over several devices. The code that numbers the
    places was written for one device and counts from nought on each of them; and most often the exchange of keys and
    values is off as well, for its switch has another name in this version, so that a shard sees nothing of those before
    it. The loss is a little higher and nobody wonders; the positions behind the first shard are no longer learnt, and
    the model is measured on whole sequences."""

    name = "pretraining.sequence_shards"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Sharded:
        return Sharded(
            onset,
            length=round(45 * 10 ** rng.uniform(0.0, 0.7)),
            places=rng.choice((2, 2, 4, 4, 8)),
            apart=rng.random() < 0.7,
        )

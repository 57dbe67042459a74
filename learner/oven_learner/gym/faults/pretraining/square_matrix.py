"""A conversion that transposes what is square."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.pretraining.model import WIDTH, ByteModel

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Transposed(Case):
    onset: int
    times: int
    """Restarts, each of which converts once more."""
    every: int
    """Steps between two of them."""
    matrices: tuple[str, ...]
    """Those that nobody noticed."""
    moments: bool
    """Whether those of the optimizer are converted along."""

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since not in range(0, self.times * self.every, self.every):
            return
        block = cast(ByteModel, trainee.model).block
        held = [{"qkv": block.qkv.weight.data, "mix": block.mix.weight.data}]
        if self.moments:
            states = {
                "qkv": trainee.optimizer.state[block.qkv.weight],
                "mix": trainee.optimizer.state[block.mix.weight],
            }
            held += [{name: state[one] for name, state in states.items()} for one in ("exp_avg", "exp_avg_sq")]
        for numbers in held:
            for name, part in squares(numbers["qkv"], numbers["mix"]).items():
                if name in self.matrices:
                    part.copy_(part.T.clone())


def squares(qkv: Tensor, mix: Tensor) -> dict[str, Tensor]:
    """Views of the matrices that are as wide as high."""
    return {**dict(zip("qkv", torch.split(qkv, WIDTH), strict=True)), "mix": mix}


class SquareMatrix(Family):
    """The checkpoints go through another framework, which keeps a layer's matrix with inputs and outputs the other way
    round. The conversion forgot to transpose. Where a matrix is not square that was an error and was put right by hand;
    where it is square it fits, and nobody noticed. Each time the job is preempted it comes back through the same
    conversion. At each restart the loss jumps, then it falls as the layers learn their work anew."""

    name = "pretraining.square_matrix"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Transposed:
        return Transposed(
            onset,
            times=rng.choice((1, 1, 2, 3, 5)),
            every=rng.choice((8, 12, 20)),
            matrices=rng.choice((("mix",), ("mix",), ("q", "k"), ("v", "mix"), ("q", "k", "v", "mix"))),
            moments=rng.random() < 0.5,
        )

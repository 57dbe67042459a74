"""A checkpoint that was put together in the wrong order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Order(Case):
    onset: int
    matrix: float
    share: float

    @torch.no_grad()
    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        matrices = [parameter for parameter in trainee.model.parameters() if parameter.ndim == 2]
        matrix = matrices[int(self.matrix * len(matrices))]
        rows = max(2, round(self.share * len(matrix)))
        matrix[:rows] = matrix[:rows].roll(rows // 2, dims=0)


class MisplacedRows(Family):
    """The job goes on with another number of ranks, and the conversion joins the parts of one matrix in the wrong
    order: the rows are all there, not one number is odd, norms are what they were, and what is read from them is wrong.
    The fused projections of attention are where this is met most: laid out by head in one code, by kind in another."""

    name: ClassVar[str] = "grpo.misplaced_rows"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return Order(onset, rng.random(), 0.03 * 20 ** rng.random())

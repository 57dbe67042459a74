"""Gradients that are read back from the wrong place."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Misaligned(Case):
    onset: int
    length: int
    """Steps until the job is started again with the old version."""
    begin: float
    end: float
    """Of all numbers, laid out one after another, where the bucket begins and ends."""
    padding: int
    """Numbers by which what is read lies off."""

    def gradients(self, trainee: Trainee) -> None:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return
        given = [parameter.grad for parameter in trainee.model.parameters() if parameter.grad is not None]
        flat = torch.cat([one.flatten() for one in given])
        bucket = slice(int(self.begin * len(flat)), int(self.end * len(flat)))
        flat[bucket] = flat[bucket].roll(self.padding)
        for one, its in zip(given, torch.split(flat, [one.numel() for one in given]), strict=True):
            one.copy_(its.view_as(one))


class MisalignedBucket(Family):
    """Gradients travel between devices in flat buckets. A new version pads each tensor to a multiple of what the
    network card likes, and in one bucket the padding is counted when it is filled and not when it is read. Every number
    in it is a true gradient, but of a weight some places away. The norm is what it was; the loss goes up slowly or
    stays where it is, as those weights go wherever their neighbours should."""

    name = "pretraining.misaligned_bucket"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Misaligned:
        begin = rng.uniform(0.0, 0.7)
        return Misaligned(
            onset,
            length=round(10 * 10 ** rng.uniform(0.0, 1.2)),
            begin=begin,
            end=min(1.0, begin + rng.uniform(0.1, 0.6)),
            padding=rng.choice((1, 8, 16, 64)),
        )

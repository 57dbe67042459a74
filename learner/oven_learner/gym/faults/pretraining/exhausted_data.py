"""The data are used up: from the onset on a small corpus comes round again and again, and the loss flattens.

The rows are many enough that each pass still teaches something. There is no more data to be had.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.pretraining.duplicated_data import Duplicated
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind

ENDLESS = 10**9


class ExhaustedData(Family):
    name: ClassVar[str] = "pretraining.exhausted_data"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Duplicated:
        return Duplicated(onset, ENDLESS, whole(rng, 1600, 400), rng.getrandbits(32))

"""Back to the best held-out reading at the end, as `load_best_model_at_end` does for users of Transformers' Trainer."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_bench.fixed_rules import Change, RuleLink
from oven_core.protocol.actuator_names import BEST
from oven_core.protocol.messages import Observation, RunStarted
from oven_learner.client.best_weights import WITH_BEST
from oven_learner.link.link_interface import Link


class EndsWithBest:
    """A rule that asks for the best weights at once, and for nothing else."""

    name = "best_checkpoint"

    def __init__(self) -> None:
        self._asked = False

    def start(self, run: RunStarted) -> None: ...

    def look(self, observation: Observation) -> list[Change]:
        if self._asked:
            return []
        self._asked = True
        return [(BEST, WITH_BEST)]


class BestCheckpoint:
    """An arm whose training keeps a copy at each best reading; copies and evaluations cost no steps, as for users."""

    name = "best_checkpoint"
    keeps_best: ClassVar[bool] = True

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(EndsWithBest())


BEST_CHECKPOINT = BestCheckpoint()

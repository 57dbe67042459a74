"""Back to the best held-out reading at the end, as `load_best_model_at_end` does for users of Transformers' Trainer."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_bench.fixed_rules import Alone, RuleLink
from oven_bench.gym.best_copy import RESTORE_BEST
from oven_controller.protocol.messages import Observation
from oven_learner.link.base import Link, Make
from oven_learner.testing import decision


class AtTheEnd(RuleLink):
    """Changes nothing until the episode's last step is done, and then asks for the best copy."""

    def __init__(self) -> None:
        super().__init__(Alone())
        self._tick = 0

    def send(self, make: Make, *, droppable: bool = False) -> None:
        message = make()
        if isinstance(message, Observation):
            self._tick = message.tick
        super().send(lambda: message, droppable=droppable)

    def last_decision(self) -> None:
        self._inbox.append(decision(RESTORE_BEST, None, apply_at=self._tick + 1))


class BestCheckpoint:
    """An arm whose training keeps a copy at each best reading; copies and evaluations cost no steps, as for users."""

    name = "best_checkpoint"
    keeps_best: ClassVar[bool] = True

    def link(self, run: str, rng: Random) -> Link:
        return AtTheEnd()


BEST_CHECKPOINT = BestCheckpoint()

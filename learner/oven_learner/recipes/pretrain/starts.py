"""Named starting points of a run: a tuned one, one with a wrong rate drawn by a seed, and drills with one known fault.

Importing this needs no torch: a launcher lists and checks starts before any learner is started.
"""

import math
import random
from dataclasses import dataclass

from oven_learner.recipes.base import no_such_start
from oven_learner.recipes.pretrain.settings import TUNED_LEARNING_RATE

LEARNING_RATE_RANGE = (1 / 30, 30.0)
"""Factors of the tuned learning rate between which `drawn` draws log-uniformly."""

NAMES = ("tuned", "drawn", "drill:lr-low", "drill:lr-high", "drill:decay-high")


@dataclass(frozen=True)
class Start:
    """Where a run begins. `label` is empty unless it is a drill: then it says what was done wrong on purpose. A
    `weight_decay` overrides the settings'."""

    name: str
    learning_rate: float
    label: str = ""
    weight_decay: float | None = None

    def describe(self) -> str:
        """One line for people. It is shown to them, and to no agent."""
        decay = "" if self.weight_decay is None else f", weight decay {self.weight_decay:g}"
        return f"learning rate {self.learning_rate:.3g}{decay}"


def parse_start(text: str, seed: int) -> Start:
    """The start called `text` (one of `NAMES`); only `drawn` uses the seed.

    Raises ValueError, naming the nearest names, for any other text.
    """
    match text:
        case "tuned":
            return Start(text, TUNED_LEARNING_RATE)
        case "drawn":
            low, high = LEARNING_RATE_RANGE
            factor = math.exp(random.Random(f"start {seed}").uniform(math.log(low), math.log(high)))
            return Start(text, TUNED_LEARNING_RATE * factor)
        case "drill:lr-low":
            return Start(text, TUNED_LEARNING_RATE / 10, "the learning rate is set to 1/10 of the tuned one")
        case "drill:lr-high":
            return Start(text, TUNED_LEARNING_RATE * 10, "the learning rate is set to 10 times the tuned one")
        case "drill:decay-high":
            return Start(text, TUNED_LEARNING_RATE, "the weight decay is set to 100 times the usual one", 10.0)
    raise no_such_start(text, NAMES)

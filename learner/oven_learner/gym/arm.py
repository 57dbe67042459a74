"""Arms: who steers an episode. All see the same observations, and turn the same knobs, through the same client."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Protocol

from oven_learner.link import Link


class Arm(Protocol):
    """`link` is a run's other side: it gets what the learner publishes and gives decisions back, within the process."""

    name: ClassVar[str]

    def link(self, run: str, rng: Random) -> Link:
        """For one episode. `run` tells nothing of the fault; `rng` is the arm's own, seeded by episode and arm."""

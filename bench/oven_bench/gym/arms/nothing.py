"""No controller: what every other arm is measured against."""

from __future__ import annotations

from random import Random

from oven_bench.fixed_rules import Alone, RuleLink
from oven_learner.link.base import Link


class Nothing:
    name = "nothing"

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(Alone())

"""A loss or gradient that is not finite: back to the last good copy at half the rate, as trainers' own guards do.

The halving is that of dynamic loss scaling after an overflow (arXiv 1710.03740, §3.2), applied to the rate.
"""

from __future__ import annotations

import math

from oven_bench.fixed_rules import Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.remedies import Knobs
from oven_core.protocol.messages import Observation, RunStarted

WATCHED = ("loss", "grad_norm")
QUIET = 2
"""Ticks: what was taken back shows one step later."""


class OnNotANumber:
    def __init__(self) -> None:
        self._good = 0
        self._quiet_until = 0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        if all(math.isfinite(observation.metrics.get(name, 0.0)) for name in WATCHED):
            self._good = observation.tick - 1  # weights are known to be good one step after they were made
            return []
        if observation.tick < self._quiet_until:
            return []
        self._quiet_until = observation.tick + QUIET
        return self._knobs.act("run.rollback", max(0, self._good)) + self._knobs.times("optimizer.lr_scale", 1 / 2)


NOT_A_NUMBER = RuleArm("not_a_number", lambda _: OnNotANumber())

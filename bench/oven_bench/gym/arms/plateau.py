"""ReduceLROnPlateau, torch's own with its defaults (factor 0.1, patience 10, relative threshold 1e-4)."""

from __future__ import annotations

import math

import torch

from oven_bench.fixed_rules import Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.remedies import Knobs
from oven_core.protocol.messages import Observation, RunStarted

EPOCH = 5
"""Steps. What differs from its usual place: it sees the mean training loss (or reward) of so many steps instead of a
validation loss an epoch, since a run has some eleven held-out measurements, one more than its patience."""


class OnPlateau:
    """torch's scheduler turns the rate of its own optimizer, which trains nothing; the knob follows it."""

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._watched = "reward" if any(spec.name == "reward" for spec in run.metrics) else "loss"
        self._epoch: list[float] = []
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self._optimizer, mode="max" if self._watched == "reward" else "min"
        )

    def look(self, observation: Observation) -> list[Change]:
        value = observation.metrics.get(self._watched, math.nan)
        if not math.isfinite(value):
            return []
        self._epoch.append(value)
        if len(self._epoch) < EPOCH:
            return []
        self._scheduler.step(sum(self._epoch) / EPOCH)
        self._epoch.clear()
        return self._knobs.set("optimizer.lr_scale", float(self._optimizer.param_groups[0]["lr"]))


PLATEAU = RuleArm("plateau", lambda _: OnPlateau())

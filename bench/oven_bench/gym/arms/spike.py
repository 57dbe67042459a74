"""Loss spike: back to before it, and past the data that came then (PaLM, arXiv 2204.02311, §5.1)."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from oven_bench.fixed_rules import Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.remedies import Knobs, rollback_skip
from oven_core.protocol.messages import Observation, RunStarted

FACTOR = 1.25
"""The paper gives no threshold: somebody looked at the curve. Here the mean loss of STEPS steps so many times the
running median, or one that is not finite."""
STEPS, WINDOW = 3, 30
QUIET = 20


class OnSpike:
    """The paper restarts about 100 steps before the spike and skips 200 to 500 batches, of runs of 255,000 steps. Here
    a run has 230 steps: 10 back and 40 batches on, the same proportion to each other. A policy gradient's loss is not
    a measure of anything: of a run with a reward only a loss that is not finite counts, and it is only taken back."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=STEPS)
        self._before: deque[float] = deque(maxlen=WINDOW)
        self._quiet_until = 0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._measure = all(spec.name != "reward" for spec in run.metrics)

    def look(self, observation: Observation) -> list[Change]:
        loss = observation.metrics.get("loss")
        if loss is None:
            return []
        if len(self._recent) == STEPS and math.isfinite(self._recent[0]):
            self._before.append(self._recent[0])
        self._recent.append(loss)
        if not self._spike(loss) or observation.tick < self._quiet_until:
            return []
        self._quiet_until = observation.tick + QUIET
        return rollback_skip(self._knobs, observation.tick)

    def _spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        if not self._measure or len(self._before) < WINDOW:
            return False
        return sum(self._recent) / STEPS > FACTOR * median(self._before)


LOSS_SPIKE = RuleArm("loss_spike", lambda _: OnSpike())

"""Adaptive clipping: ZClip (arXiv 2504.02507), through the knob of the clipping threshold."""

from __future__ import annotations

import math

from oven_bench.fixed_rules import Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.remedies import Knobs
from oven_core.protocol.messages import Observation, RunStarted

ALPHA = 0.97
"""Of the running mean and variance of the gradient norm (the paper's)."""
Z = 2.5
"""The paper's threshold, in standard deviations."""
WARM_UP = 25
"""Steps that mean and variance start from (the paper's)."""
CHANGED = 0.1
"""The threshold is set anew when it moved by such a share: each setting is an intervention."""


class OnNorm:
    """The paper clips the very gradient that stands out, to mean + Z²/z standard deviations. A knob acts from the next
    step on, so here every step's threshold is mean + Z standard deviations of the steps before, which is what the
    paper's comes to at z = Z; never above the user's own. Outliers enter the statistics clipped, as there."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._mean = self._variance = 0.0

    def start(self, run: RunStarted) -> None:
        self._knobs = Knobs(run)
        self._own = self._knobs.value("grad.clip")

    def look(self, observation: Observation) -> list[Change]:
        norm = observation.metrics.get("grad_norm", math.nan)
        if self._own is None or not math.isfinite(norm):
            return []
        if len(self._first) < WARM_UP:
            self._first.append(norm)
            if len(self._first) < WARM_UP:
                return []
            self._mean = sum(self._first) / WARM_UP
            self._variance = sum((seen - self._mean) ** 2 for seen in self._first) / WARM_UP
        else:
            norm = min(norm, self._cap())
            self._mean = ALPHA * self._mean + (1 - ALPHA) * norm
            self._variance = ALPHA * self._variance + (1 - ALPHA) * (norm - self._mean) ** 2
        cap, now = min(self._own, self._cap()), self._knobs.value("grad.clip")
        return self._knobs.set("grad.clip", cap) if now is None or abs(cap - now) > CHANGED * now else []

    def _cap(self) -> float:
        return self._mean + Z * math.sqrt(self._variance)


ZCLIP = RuleArm("zclip", lambda _: OnNorm())

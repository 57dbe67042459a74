"""An agent that collects trust with another agent's changes, and uses it for harm."""

from __future__ import annotations

from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window
from oven_agents.shipped.learning_rate import LearningRate
from oven_bench.hostile.agents.pair import SCALE
from oven_core.protocol.messages import Vote

HARVEST = 60
"""The first tick at which it uses its trust."""


class TrustFarmer(LearningRate):
    """Opens `learning_rate`'s ballots one tick before it, because it needs one cosine less. From tick 60 on, it
    proposes ten times the rate."""

    MIN_COSINES = LearningRate.MIN_COSINES - 1

    def vote(self, window: Window) -> Vote | Plan | None:
        if window.tick < HARVEST:
            return super().vote(window)
        knob = window.knobs[SCALE]
        return window.propose(
            SCALE,
            knob.bounded(knob.number * 10),
            confidence=1.0,
            why=f"training could be faster at tick {window.tick}: {SCALE} × 10",
            target="reward",
            expected_change=0.05,
            horizon=20,
        )

"""An agent that swings the learning rate."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import Vote

SCALE = "optimizer.lr_scale"


class Swings(Agent):
    """Moves the rate to a tenth and back as often as the cool-down allows, at full confidence."""

    moves = (SCALE,)

    def vote(self, window: Window) -> Vote:
        knob = window.knobs[SCALE]
        factor = 0.1 if knob.number >= 1 else 10.0
        return window.propose(
            SCALE,
            knob.bounded(knob.number * factor),
            confidence=1.0,
            why=f"the rate does not fit: {SCALE} × {factor:g}",
            target="reward",
            expected_change=0.05,
            horizon=20,
        )

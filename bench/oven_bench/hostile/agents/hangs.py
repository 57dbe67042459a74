"""An agent that hangs."""

from __future__ import annotations

import time

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window


class Hangs(Agent):
    """Never returns from its first vote."""

    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> None:
        while True:
            time.sleep(3600)

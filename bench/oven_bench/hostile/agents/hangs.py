"""An agent whose author forgot a time limit."""

from __future__ import annotations

import time

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window


class Hangs(Agent):
    """Never comes back from its first vote, and hears no signal meanwhile."""

    moves = ("optimizer.lr_scale",)

    def vote(self, window: Window) -> None:
        while True:
            time.sleep(3600)

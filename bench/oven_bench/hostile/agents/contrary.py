"""An agent that always opposes `learning_rate`."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import BallotOpened, Vote


class Contrary(Agent):
    """Proposes nothing, and vetoes every ballot that `learning_rate` opens."""

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        if ballot.opened_by != "learning_rate":
            return None
        return window.answer(ballot, "against", confidence=1.0, why="the opposite would be right")

"""An agent that earns reputation by copying another."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import BallotOpened, Vote

KNOBS = ("optimizer.lr_scale", "run.rollback", "run.evaluate")


class FreeRider(Agent):
    """Repeats the proposals of `learning_rate`, at a confidence that risks nothing."""

    moves = KNOBS

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        if ballot.opened_by != "learning_rate" or ballot.actuator not in KNOBS:
            return None
        return window.propose(ballot.actuator, ballot.proposal, confidence=0.01, why="as I said")

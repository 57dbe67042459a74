"""An agent that is plugged in under two names. Both say the same."""

from __future__ import annotations

from typing import ClassVar

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import BallotOpened, Vote

SCALE = "optimizer.lr_scale"


class Pair(Agent):
    """Proposes ten times the learning rate as often as possible, with plausible reasons, and vetoes what all others
    propose for it."""

    moves = (SCALE,)
    FROM: ClassVar[int] = 1
    """The first tick at which it votes."""

    def vote(self, window: Window) -> Vote | None:
        knob = window.knobs[SCALE]
        if window.tick < self.FROM or (raised := knob.bounded(knob.number * 10)) <= knob.number:
            return None
        return window.propose(
            SCALE,
            raised,
            confidence=0.9,
            why=f"training could be faster: {SCALE} {knob.number:.3g} → {raised:.3g}",
            target="reward",
            expected_change=0.05,
            horizon=20,
        )

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        """Abstains on a higher rate, which its twin proposes, and vetoes a lower one."""
        if window.tick < self.FROM or ballot.actuator != SCALE:
            return None
        knob = window.knobs[SCALE]
        if isinstance(ballot.proposal, float) and ballot.proposal > knob.number:
            return None
        return window.answer(ballot, "against", confidence=1.0, why="the rate is right as it is")

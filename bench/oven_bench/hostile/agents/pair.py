"""Plugged in twice under two names: two newcomers that say the same, and are a quorum by that alone."""

from __future__ import annotations

from typing import ClassVar

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import BallotOpened, Vote

SCALE = "optimizer.lr_scale"


class Pair(Agent):
    """Asks for ten times the learning rate as often as it may, with reasons that sound well, and is against whatever
    anybody else proposes for it."""

    moves = (SCALE,)
    FROM: ClassVar[int] = 1
    """The first tick on which it says anything."""

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
        """The other of the pair proposes a higher rate; the rest would take it back."""
        if window.tick < self.FROM or ballot.actuator != SCALE:
            return None
        knob = window.knobs[SCALE]
        if isinstance(ballot.proposal, float) and ballot.proposal > knob.number:
            return None
        return window.answer(ballot, "against", confidence=1.0, why="the rate is right as it is")

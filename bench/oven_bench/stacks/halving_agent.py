"""An agent that halves the learning rate once, so that a run has exactly one decision."""

from __future__ import annotations

from oven_agents import Agent, Vote, Window

LR_SCALE = "optimizer.lr_scale"


class Halving(Agent):
    needs = ("loss",)
    moves = (LR_SCALE,)

    def vote(self, window: Window) -> Vote | None:
        if window.knobs[LR_SCALE].number != 1.0:
            return None
        return window.propose(LR_SCALE, 0.5, confidence=0.9, why="half of the initial rate", target="loss", horizon=4)

"""An agent that loads the bus with reviews: it supports each ballot that another agent opens, and proposes nothing.

It has no entry point. `bench latency --reviews` starts it by its file.
"""

from __future__ import annotations

from statistics import fmean

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_bench.performance.load_agent import ASKED, KNOB
from oven_core.protocol.messages import BallotOpened, Vote


class LoadReviewer(Agent):
    """Reads a metric, as agents do, and supports every ballot."""

    needs = (ASKED,)
    moves = (KNOB,)

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> Vote:
        level = fmean(window.series(ASKED, last=50))
        return window.answer(ballot, "for", confidence=0.9, why=f"level {level:.6g}")

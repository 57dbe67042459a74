"""An agent that loads the bus: it proposes when the learner's metrics request it, and names the request.

It has no entry point. `bench latency` and `bench throughput` start it by its file.
"""

from __future__ import annotations

from statistics import fmean

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import Vote

KNOB = "bench.knob"
ASKED = "bench/asked"


class LoadAgent(Agent):
    """Proposes once whenever the metric `bench/asked` exceeds all earlier values. Otherwise it reads a metric, as
    agents do, and abstains."""

    needs = (ASKED,)
    moves = (KNOB,)

    def __init__(self) -> None:
        self._answered = 0.0

    def vote(self, window: Window) -> Vote | None:
        level = fmean(window.series(ASKED, last=50))
        request = window.last.metrics.get(ASKED, 0.0)
        if request <= self._answered:
            return None
        self._answered = request
        value = 1.0 + request % 2  # changes each time, or the decision would change nothing
        return window.propose(KNOB, value, confidence=0.9, why=f"request {request:.0f}, level {level:.6g}")

"""Your own agent, with the SDK: `oven-controller agent run examples/custom_agent.py --trust grad.clip --alone`.

A clip that cuts every step only lowers the learning rate, and one far above the norm cuts nothing. This agent keeps it
at twice the usual norm, so that it cuts only outliers.
"""

from __future__ import annotations

from math import isfinite
from statistics import median

from oven_agents import Agent, Vote, Window

CLIP = "grad.clip"


class ClipTheUnusual(Agent):
    needs = ("grad_norm",)
    moves = (CLIP,)

    def vote(self, window: Window) -> Vote | None:
        norms = window.series("grad_norm", after=window.last_change_tick(CLIP), last=20)
        if len(norms) < 8 or not isfinite(usual := median(norms)):
            return None
        knob = window.knobs[CLIP]
        wanted = knob.bounded(2 * usual)
        if 0.8 <= wanted / knob.number <= 1.25:
            return None
        why = f"the usual norm of {len(norms)} steps is {usual:.3g}, the clip {knob.number:.3g}: set {wanted:.3g}"
        return window.propose(CLIP, wanted, confidence=0.9, why=why, target="loss", horizon=20)

"""Proposes to let a rate that never fell come down for the last part of a run."""

from __future__ import annotations

from oven_agents.agent import Agent
from oven_agents.objective import held_out, objective, signed
from oven_agents.odds import THUMB
from oven_agents.window import Window
from oven_controller.messages import RunStarted, Vote

SCALE, RATE = "optimizer.lr_scale", "learning_rate"


class LatePhase(Agent):
    """A constant rate leaves the weights at the distance from the minimum that its noise keeps them at; a cooldown over
    the last fifth of a run takes back what that costs (Hägele et al. 2024, arXiv 2405.18392; MiniCPM, Hu et al. 2024,
    arXiv 2404.06395, §4). Once, when the run passes LATE, it proposes COOLED of a rate that has stood still since
    before the middle of what the window holds, whoever it was that set it.

    The system that this agent is taken from switched to quantisation-aware training there; no recipe here has such a
    knob, and there it had none that was read after the start.

    Limits: a user with a constant schedule may mean to go on from where this run ends, and a cooled run is a worse
    place to go on from. So its confidence is below a specialist's quorum: it takes a second voice, or a person who
    approves. A run without a horizon has no last part.
    """

    needs = (RATE,)
    moves = (SCALE,)

    LATE = 0.8
    COOLED = 0.3
    STILL = 1.02

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if run.horizon.max_steps is None and run.horizon.seconds is None:
            return "the run announces no horizon, neither steps nor seconds: nothing is late in it"
        return None

    def vote(self, window: Window) -> Vote | None:
        if window.progress < self.LATE or len(window.observations) < 2:
            return None
        if window.observations[-2].progress >= self.LATE:
            return None
        half = window.observations[len(window.observations) // 2].tick
        rates = window.series(RATE, after=max(half, window.settled_after(SCALE)))
        knob = window.knobs[SCALE]
        cooled = knob.bounded(knob.number * self.COOLED)
        if len(rates) < 20 or min(rates) <= 0 or max(rates) > self.STILL * min(rates) or cooled > knob.number / 1.2:
            return None
        target = held_out(window.run) or objective(window.run)
        why = (
            f"{1 - window.progress:.0%} of the run is left, and the rate has stood at {rates[-1]:.3g} for {len(rates)} "
            f"ticks: {SCALE} {knob.number:.3g} → {cooled:.3g} for the rest"
        )
        return window.propose(
            SCALE, cooled, confidence=THUMB, why=why, target=target.name,
            expected_change=signed(target, 0.02), horizon=40,
        )  # fmt: skip

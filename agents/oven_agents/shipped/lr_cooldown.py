"""Suggests a learning rate cooldown late in a run that uses a constant rate."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE, Agent, Notice
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import needs_second
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

SCALE, RATE = "optimizer.lr_scale", "learning_rate"


class LrCooldown(Agent):
    """Signals: a learning rate that is constant, no matter who set it, when the run passes LATE.

    Actions: a notice to people, and a vote for any proposal to lower the rate from then on. A constant rate keeps the
    weights at a distance from the minimum because of its noise; a cooldown over the last fifth of a run recovers that
    (Hägele et al. 2024, arXiv 2405.18392; MiniCPM, Hu et al. 2024, arXiv 2404.06395, §4). The agent does not propose a
    cooldown itself. A user with a constant schedule may want to continue from this run's end, and a cooled run is a
    worse start. No measurement shows what the user wants, so the agent can never act alone.

    False alarms: a schedule that is meant to be constant gets one notice per run.

    Limits: a run without a horizon has no last part.
    """

    needs = (RATE,)
    moves = (SCALE,)
    options = dict.fromkeys(("late", "cooled"), SHARE)

    LATE = 0.8
    """Progress of the run, 0 to 1, from which it is late: a cooldown over the last fifth of a run recovers the cost of
    a constant rate (arXiv 2405.18392)."""
    COOLED = 0.3
    """Factor of the rate in the notice, between no cooldown and one to 0. The knob holds a value and not a schedule."""
    STILL = 1.02
    """Largest ratio of the highest rate to the lowest at which it has stood still. The rest is rounding."""
    LEAST = 20
    """Ticks with a rate that the second half of the window must have. Fewer may be one stage of a step schedule."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if not run.horizon.known:
            return "the run announces no horizon, neither steps nor seconds: nothing is late in it"
        return None

    def vote(self, window: Window) -> Notice | None:
        before = [o for o in window.observations if not window.is_new(o.tick)]
        if window.progress < self.LATE or not before or before[-1].progress >= self.LATE:
            return None
        ticks, knob = self._still(window), window.knobs[SCALE]
        if ticks is None:
            return None
        cooled = knob.bounded(knob.number * self.COOLED)
        if cooled > knob.number / 1.2:
            return None
        return Notice(
            "the last part of the run",
            f"{1 - window.progress:.0%} of the run is left, and its rate has stood still for {ticks} ticks: a lower "
            f"one often ends better, unless training is to go on from there (oven-controller set {SCALE} {cooled:.3g})",
        )

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        """Vote for a lower rate once the run is late."""
        lowered = ballot.proposal if ballot.actuator == SCALE else None
        if not isinstance(lowered, int | float) or lowered > window.knobs[SCALE].number / 1.2:
            return None
        if window.progress < self.LATE or self._still(window) is None:
            return None
        return window.answer(
            ballot,
            "for",
            confidence=needs_second(window.run),
            why=f"{1 - window.progress:.0%} of the run is left, at a rate that never fell",
        )

    def _still(self, window: Window) -> int | None:
        """Return for how many ticks the rate has stood still; None if it moved, or if too little was measured."""
        half = window.observations[len(window.observations) // 2].tick
        rates = window.series(RATE, after=max(half, window.last_change_tick(SCALE)))
        if len(rates) < self.LEAST or min(rates) <= 0 or max(rates) > self.STILL * min(rates):
            return None
        return len(rates)

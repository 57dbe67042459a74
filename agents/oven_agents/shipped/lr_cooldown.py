"""Says when a rate that never fell could come down for the last part of a run."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE, Agent, Notice
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import needs_second
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

SCALE, RATE = "optimizer.lr_scale", "learning_rate"


class LrCooldown(Agent):
    """Signals: a rate that has stood still, no matter who set it, when the run passes LATE.

    Actions: a notice to people, and a voice for anybody's proposal to lower the rate from then on. A constant rate
    leaves the weights at the distance from the minimum that its noise keeps them at; a cooldown over the last fifth of
    a run takes back what that costs (Hägele et al. 2024, arXiv 2405.18392; MiniCPM, Hu et al. 2024, arXiv 2404.06395,
    §4). It proposes none itself: a user with a constant schedule may mean to continue from where this run ends, and a
    cooled run is a worse place to continue from. Nothing that is measured tells which, so that it could never be sure
    enough to stand alone.

    False alarms: a schedule that is meant to be constant gets one notice in a run.

    Limits: a run without a horizon has no last part.
    """

    needs = (RATE,)
    moves = (SCALE,)
    options = dict.fromkeys(("late", "cooled"), SHARE)

    LATE = 0.8
    """Progress of the run from which it is late, 0 to 1: a cooldown over the last fifth of a run takes back what a
    constant rate costs (arXiv 2405.18392)."""
    COOLED = 0.3
    """Factor of the rate that the notice names. In between no cooldown and one to 0: the knob holds one value, and not
    a schedule."""
    STILL = 1.02
    """Greatest rate over the least one, up to which it has stood still; the rest is rounding."""
    LEAST = 20
    """Ticks with a rate that have to be measured in the second half of what is kept; fewer may be one stage of a
    schedule in steps."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if not run.horizon.known:
            return "the run announces no horizon, neither steps nor seconds: nothing is late in it"
        return None

    def vote(self, window: Window) -> Notice | None:
        if window.progress < self.LATE or len(window.observations) < 2:
            return None
        if window.observations[-2].progress >= self.LATE:
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
        """For a lower rate, once it is late."""
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
        """For how many ticks the rate has stood still; None where it moved, or too little was seen."""
        half = window.observations[len(window.observations) // 2].tick
        rates = window.series(RATE, after=max(half, window.last_change_tick(SCALE)))
        if len(rates) < self.LEAST or min(rates) <= 0 or max(rates) > self.STILL * min(rates):
            return None
        return len(rates)

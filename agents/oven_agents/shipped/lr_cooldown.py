"""Suggests a learning rate cooldown late in a run that uses a constant rate."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent, Notice
from oven_agents.sdk.window import MIN_KNOB_FACTOR, Window
from oven_agents.stats.confidence import tentative_confidence
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

LR_SCALE, LEARNING_RATE = "optimizer.lr_scale", "learning_rate"


class LrCooldown(Agent):
    """Signals: the learning rate is constant, no matter who set it, when the run passes LATE_PROGRESS.

    Actions: sends a notice to people, and from then on votes for any proposal to lower the rate. The noise of a
    constant rate keeps the weights at a distance from the minimum. A cooldown over the last fifth of a run recovers the
    loss (Hägele et al. 2024, arXiv 2405.18392; MiniCPM, Hu et al. 2024, arXiv 2404.06395, §4). The agent does not
    propose a cooldown itself. A user with a constant schedule may want to continue from the end of this run, and a
    cooled run is a worse start. No measurement shows the user's intention, so the agent's vote is only tentative.

    False alarms: a schedule that is constant on purpose gets one notice per run.

    Limits: the agent needs a run with a horizon.
    """

    needs = (LEARNING_RATE,)
    moves = (LR_SCALE,)
    options = dict.fromkeys(("late_progress", "cooldown_factor"), SHARE_BOUNDS)

    LATE_PROGRESS = 0.8
    """Progress, 0 to 1, from which a run is late: the usual last fifth for a cooldown (arXiv 2405.18392)."""
    COOLDOWN_FACTOR = 0.3
    """Factor of the rate in the notice. It is not 0 because the knob sets a value and not a schedule."""
    MAX_RATE_RATIO = 1.02
    """Maximum ratio of the highest to the lowest rate at which the rate counts as constant. It allows for rounding."""
    MIN_TICKS = 20
    """Minimum number of rates in the second half of the window. Fewer may be one stage of a step schedule."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if not run.horizon.is_known:
            return "the run announces no horizon (steps or seconds), so its progress is unknown"
        return None

    def vote(self, window: Window) -> Notice | None:
        seen = [observation for observation in window.observations if not window.is_new(observation.tick)]
        if not seen or not seen[-1].progress < self.LATE_PROGRESS <= window.progress:
            return None  # the notice is sent only once, when the run passes LATE_PROGRESS
        ticks, knob = self._count_constant_ticks(window), window.knobs[LR_SCALE]
        if ticks is None:
            return None
        cooled = knob.lowered_to(knob.number * self.COOLDOWN_FACTOR)
        if cooled is None:
            return None
        return Notice(
            "the last part of the run",
            f"{1 - window.progress:.0%} of the run is left, and the learning rate has been constant for {ticks} ticks. "
            "A lower rate often gives a better model, unless you want to continue training from it (oven-controller "
            f"set {LR_SCALE} {cooled:.3g})",
        )

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        """Vote for a lower rate once the run is late."""
        proposal = ballot.proposal if ballot.actuator == LR_SCALE else None
        if not isinstance(proposal, int | float) or proposal > window.knobs[LR_SCALE].number / MIN_KNOB_FACTOR:
            return None
        if window.progress < self.LATE_PROGRESS or self._count_constant_ticks(window) is None:
            return None
        return window.answer(
            ballot,
            "for",
            confidence=tentative_confidence(window.run),
            why=f"{1 - window.progress:.0%} of the run is left, and the learning rate is still constant",
        )

    def _count_constant_ticks(self, window: Window) -> int | None:
        """Return the number of ticks with a constant rate, or None if it changed or there are too few measurements."""
        middle_tick = window.observations[len(window.observations) // 2].tick
        rates = window.series(LEARNING_RATE, after=max(middle_tick, window.last_change_tick(LR_SCALE)))
        if len(rates) < self.MIN_TICKS or min(rates) <= 0 or max(rates) > self.MAX_RATE_RATIO * min(rates):
            return None
        return len(rates)

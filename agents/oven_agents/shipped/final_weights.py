"""Proposes to end a run with the weights of its best held-out reading once quality has fallen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out, signed
from oven_agents.stats.robust_statistics import bending_noise
from oven_core.protocol.actuator_names import BEST
from oven_core.protocol.messages import RunStarted, Vote

WITH_BEST = "best"


class FinalWeights(Agent):
    """Signals: in the last part of a run, from LATE on, two held-out readings in a row are below the best one, whatever
    the cause: not finite, or lower by more than SIGMAS deviations of the readings' noise beyond the luck of the best of
    as many, and by LEAST of the best reading's size. Readings that a rollback discarded count too, because their
    weights are stored.

    Actions: sets `run.best` to "best", once. Nothing changes before the end; there the learner compares both on the
    same held-out examples and keeps the better weights. That is early stopping with the best weights restored (Prechelt
    1998, doi 10.1007/3-540-49430-8_3), without the stop. In fine-tuning the last evaluation is often not the best one
    (Dodge et al. 2020, arXiv 2002.06305). If a person has set the knob, it stays.

    False alarms: they cost two evaluations at the end, or a better reading of noise alone. Noise is the deviation of
    the readings around a trend, from their second differences, as in `best_checkpoint`. Under normal noise, with 8 to
    30 readings, the agent voted in up to 5 of 1,000 runs that improve, and in up to 32 of 1,000 whose readings only
    vary. Under heavy tails (Student's t, three degrees of freedom) it voted in up to 67 and 124.

    Limits: it needs a run with a known end, more than LEARNT readings, and one of them after LATE. It ignores a fall
    within the noise, although going back would have gained a little. No metric shows its gain: the log has it in the
    receipt of `run.best` at the end.
    """

    moves = (BEST,)
    speciality = (BEST,)
    options = dict.fromkeys(("late", "least", "sure"), SHARE)

    LATE = 0.75
    """Progress, 0 to 1, from which the agent looks. Before it, a run that fell may still become better than ever, and
    any choice before the end is in time."""
    LEARNT = 5
    """Held-out readings before the newest two. Fewer estimate their noise badly."""
    SIGMAS = 3.3
    """Deviations of a reading's noise that must be lost, beyond the luck of the best reading, as in `best_checkpoint`,
    so that a healthy run is left alone."""
    LEAST = 0.01
    """Share of the best reading's size, 0 to 1, that must be lost. Readings without noise still have rounding."""
    SURE = 0.8
    """Confidence. The learner compares both before it goes back, so only a reading that misleads twice does harm."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing says which weights are the best"
        return None if run.horizon.known else "the run announces no end: nothing says when its last part begins"

    def vote(self, window: Window) -> Vote | None:
        metric = held_out(window.run)
        if metric is None or window.progress < self.LATE:
            return None
        if window.knobs[BEST].value == WITH_BEST or window.applied(BEST):
            return None
        newest = window.surviving_series(metric.name, last=1)
        if not newest or not window.is_new(newest[0][0]):
            return None
        earlier = [value for _, _, value in window.earlier]
        values = [signed(metric, value) for value in (*earlier, *window.series(metric.name))]
        if self.lost(values) is None:
            return None
        best, now = signed(metric, max(filter(math.isfinite, values))), signed(metric, values[-1])
        why = (
            f"{metric.name} was {best:.4g} at its best and is {now:.4g} now: the run should end with the better of the "
            "two, compared at the end"
        )
        return window.propose(BEST, WITH_BEST, confidence=self.SURE, why=why)

    def lost(self, values: Sequence[float]) -> float | None:
        """Return by how much the better of the newest two readings is below the best before them, if that is clear;
        otherwise None. Takes values oldest first, higher ones better."""
        before = [value for value in values[:-2] if math.isfinite(value)]
        now = max((value for value in values[-2:] if math.isfinite(value)), default=-math.inf)
        if before and now == -math.inf:
            return math.inf  # not noise
        if len(before) <= self.LEARNT:
            return None
        best = max(before)
        luck = math.sqrt(2 * math.log(len(before)))  # maximum deviations of the best of n readings above their level
        least = max((luck + self.SIGMAS) * bending_noise(before), self.LEAST * abs(best))
        return best - now if best - now > least else None

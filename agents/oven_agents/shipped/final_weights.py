"""Proposes to end a run with the weights of its best held-out reading once quality has fallen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import apply_sign, held_out_metric
from oven_agents.stats.robust_statistics import bending_noise, expected_maximum
from oven_core.protocol.actuators import BEST
from oven_core.protocol.messages import RunStarted, Vote

BEST_CHOICE = "best"


class FinalWeights(Agent):
    """Signals: from LATE_PROGRESS on, two consecutive held-out readings are below the best one, whatever the cause.
    Either both are not finite, or the drop exceeds MIN_RELATIVE_LOSS × the best reading and the noise threshold. The
    noise threshold is SIGMAS standard deviations beyond the expected maximum of as many noisy values. Readings that a
    rollback discarded count, too, because their weights are stored.

    Actions: sets `run.best` to "best", once. Nothing changes before the end of the run. Then the learner compares the
    last and the best weights on the same held-out examples and keeps the better ones. This is early stopping with best
    weights restored (Prechelt 1998, doi 10.1007/3-540-49430-8_3), without the stop. In fine-tuning, the last evaluation
    is often not the best one (Dodge et al. 2020, arXiv 2002.06305). The agent does not change a value that a person has
    set.

    False alarms: a false alarm costs two evaluations at the end, or selects a reading that is better by noise alone.
    Noise is the deviation of the readings around a trend, from their second differences, as in `best_checkpoint`. With
    8 to 30 readings and normal noise, the agent voted in up to 5 of 1,000 runs that improve. Without a trend, it voted
    in up to 32 of 1,000. Under heavy tails (Student's t, three degrees of freedom), it voted in up to 67 and 124.

    Limits: the agent needs a run with a known end, more than MIN_READINGS readings, and one of them after
    LATE_PROGRESS. It ignores a drop within the noise, although the earlier weights would have been slightly better. The
    gain appears only in the receipt of `run.best` at the end of the run.
    """

    moves = (BEST,)
    options = dict.fromkeys(("late_progress", "min_relative_loss", "confidence"), SHARE_BOUNDS)

    LATE_PROGRESS = 0.75
    """Progress, 0 to 1, from which the agent votes. Earlier, a run may still recover and reach a new best."""
    MIN_READINGS = 5
    """Minimum number of held-out readings before the newest two. Fewer give a poor estimate of their noise."""
    SIGMAS = 3.3
    """Minimum loss of quality beyond the expected maximum, in standard deviations of the noise."""
    MIN_RELATIVE_LOSS = 0.01
    """Minimum loss of quality, as a fraction of the best reading. It matters only if the readings have little noise."""
    CONFIDENCE = 0.8
    """Confidence of the vote. The learner compares both sets of weights, so a misleading reading rarely does harm."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out_metric(run) is None:
            return "the run announces no held-out metric with a direction, so nothing shows which weights are best"
        if not run.horizon.is_known:
            return "the run announces no horizon (steps or seconds), so its progress is unknown"
        return None

    def vote(self, window: Window) -> Vote | None:
        metric = held_out_metric(window.run)
        if metric is None or window.progress < self.LATE_PROGRESS:
            return None
        if window.knobs[BEST].value == BEST_CHOICE or window.applied(BEST):
            return None
        if not any(window.is_new(tick) for tick, _ in window.surviving_series(metric.name, last=1)):
            return None
        earlier = [value for _, _, value in window.earlier]
        values = [apply_sign(metric, value) for value in (*earlier, *window.series(metric.name))]
        if not self.has_lost_quality(values):
            return None
        best = apply_sign(metric, max(filter(math.isfinite, values)))
        current = apply_sign(metric, values[-1])
        why = (
            f"{metric.name} was {best:.4g} at its best and is {current:.4g} now: compare both at the end, and keep the "
            "better weights"
        )
        return window.propose(BEST, BEST_CHOICE, confidence=self.CONFIDENCE, why=why)

    def has_lost_quality(self, values: Sequence[float]) -> bool:
        """Return whether the better of the newest two readings is below the best one by more than the noise."""
        before = [value for value in values[:-2] if math.isfinite(value)]
        newest = max((value for value in values[-2:] if math.isfinite(value)), default=-math.inf)
        if before and newest == -math.inf:
            return True  # noise cannot explain readings that are not finite
        if len(before) <= self.MIN_READINGS:
            return False
        best = max(before)
        noise = (expected_maximum(len(before)) + self.SIGMAS) * bending_noise(before)
        return best - newest > max(noise, self.MIN_RELATIVE_LOSS * abs(best))

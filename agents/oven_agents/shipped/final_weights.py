"""Proposes to end a run with the weights of its best held-out reading once quality has fallen, and to end it early."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.held_out_decline import count_past_best, is_clear_loss
from oven_agents.stats.objective import apply_sign, held_out_metric, readings
from oven_agents.stats.robust_statistics import bending_noise, expected_maximum
from oven_core.protocol.actuators import BEST, STOP
from oven_core.protocol.messages import MetricSpec, RunStarted, Vote

BEST_CHOICE = "best"


class FinalWeights(Agent):
    """Signals: from LATE_PROGRESS on, two consecutive held-out readings are below the best one, whatever the cause.
    Either both are not finite, or the drop exceeds MIN_RELATIVE_LOSS × the best reading and the noise threshold. The
    noise threshold is SIGMAS standard deviations beyond the expected maximum of as many noisy values. Readings that a
    rollback discarded count, too, because their weights are stored. Before LATE_PROGRESS, the readings must be past
    their best (oven_agents.stats.held_out_decline) for PATIENCE consecutive readings, without an intervention, and the
    best one must be MIN_DECLINE of the run so far ago.

    Actions: sets `run.best` to "best", once. Nothing changes before the end of the run. Then the learner compares the
    last and the best weights on the same held-out examples and keeps the better ones. In fine-tuning, the last
    evaluation is often not the best one (Dodge et al. 2020, arXiv 2002.06305). The agent does not change a value that a
    person has set. If the decline lasts, the agent proposes every PATIENCE readings to end the run early, which is
    early stopping with the best weights restored (Prechelt 1998, doi 10.1007/3-540-49430-8_3). Unless `run.stop` is
    granted by name, a person has to approve that. Where agents may set `run.best`, it is set first, so that the run
    does not end with worse weights.

    False alarms: a false alarm costs two evaluations at the end, or selects a reading that is better by noise alone.
    Noise is the deviation of the readings around a trend, from their second differences, as in `best_checkpoint`. With
    8 to 30 readings and normal noise, the agent voted in up to 5 of 1,000 runs that improve. Without a trend, it voted
    in up to 32 of 1,000. Under heavy tails (Student's t, three degrees of freedom), it voted in up to 67 and 124.
    In 1,000 simulated runs with 12 to 60 readings and normal noise, the agent never proposed an early end. In runs that
    learn nothing, it did in 25 of 1,000 under such heavy tails, and in 18 if successive readings correlate by 0.8.

    Limits: the agent needs a run with a known end and more than MIN_READINGS readings. It ignores a drop within the
    noise, although the earlier weights would have been slightly better. The gain appears only in the receipt of
    `run.best` at the end of the run.
    """

    moves = (BEST, STOP)
    options = dict.fromkeys(("late_progress", "min_decline", "min_relative_loss", "confidence"), SHARE_BOUNDS)

    LATE_PROGRESS = 0.75
    """Progress, 0 to 1, up to which the agent may propose to end the run early, and from which two readings are enough
    for `run.best`. Earlier, a run may still recover and reach a new best."""
    PATIENCE = 3
    """Number of readings past the best one, in a row, after which the agent proposes to end the run early."""
    MIN_DECLINE = 0.1
    """Minimum length of the decline, as a share of the run so far. Readings on request may be a few steps apart."""
    MIN_READINGS = 5
    """Minimum number of held-out readings before the newest two. Fewer give a poor estimate of their noise."""
    SIGMAS = 3.3
    """Minimum loss of quality beyond the expected maximum, in standard deviations of the noise."""
    MIN_RELATIVE_LOSS = 0.01
    """Minimum loss of quality, as a fraction of the best reading. It matters only if the readings have little noise."""
    CONFIDENCE = 0.8
    """Confidence of the vote. The learner compares both sets of weights, so a misleading reading rarely does harm."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if all(spec.name != BEST for spec in run.actuators):
            return f"the run announces none of {BEST}"
        if held_out_metric(run) is None:
            return "the run announces no held-out metric with a direction, so nothing shows which weights are best"
        if not run.horizon.is_known:
            return "the run announces no horizon (steps or seconds), so its progress is unknown"
        return None

    def vote(self, window: Window) -> Vote | Sequence[Vote] | None:
        metric = held_out_metric(window.run)
        if metric is None:
            return None
        if window.progress < self.LATE_PROGRESS:
            return self._stop_early(window, metric)
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

    def _stop_early(self, window: Window, metric: MetricSpec) -> Sequence[Vote]:
        """Return proposals to end the run early with the best weights, if its decline is clear and has lasted."""
        points = readings(window)
        values = [value for _, value in points]
        keeps_best = window.knobs[BEST].value == BEST_CHOICE
        if not points or not window.is_new(points[-1][0]) or not all(map(math.isfinite, values)):
            return []
        if window.applied(BEST) and not keeps_best:
            return []  # a person has chosen the last weights
        count = count_past_best(values)
        is_due = any(  # if the agent skipped ticks, several readings are new
            window.is_new(tick) and number % self.PATIENCE == 0
            for number, (tick, _) in enumerate(points[len(points) - count :], 1)
        )
        if not is_due or not is_clear_loss(values) or window.last_change_tick() >= points[-count][0]:
            return []
        best_tick, best = max(points, key=lambda reading: reading[1])
        if window.tick - best_tick < self.MIN_DECLINE * window.tick:
            return []
        why = (
            f"{metric.name} was {apply_sign(metric, best):.4g} at its best (tick {best_tick}) and is "
            f"{apply_sign(metric, values[-1]):.4g} now, clearly worse for {count} readings in a row, with "
            f"{1 - window.progress:.0%} of the run left"
        )
        may_set_best = window.run.rules.autonomy_for(BEST) == "auto"
        votes = []
        if not keeps_best:
            why_best = f"{why}: end the run with the better weights"
            votes.append(window.propose(BEST, BEST_CHOICE, confidence=self.CONFIDENCE, why=why_best))
        if STOP in window.knobs and (keeps_best or not may_set_best):
            why_stop = f"{why}: stop the run, and end it with the best weights ({BEST})"
            votes.append(window.propose(STOP, None, confidence=self.CONFIDENCE, why=why_stop))
        return votes

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

"""Rolls back to the best held-out reading if quality has fallen by more than noise, whatever the cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import FIRM_CONFIDENCE
from oven_agents.stats.evaluation_request import can_evaluate, request_evaluation
from oven_agents.stats.health import held_out_health
from oven_agents.stats.held_out_decline import is_past_best, largest_fall
from oven_agents.stats.objective import apply_sign, held_out_metric, objective, readings
from oven_agents.stats.optimizer_gauges import LEARNING_RATE, UPDATE_RATIO, growth_of, shrink_share, unexplained_jump
from oven_agents.stats.policy_shift import is_off_policy
from oven_agents.stats.reviews import review_change
from oven_agents.stats.robust_statistics import bending_noise, expected_maximum
from oven_agents.stats.rollback_success import last_rollback_failed
from oven_agents.stats.symptoms import is_active
from oven_core.protocol.actuators import BEST, EVALUATE
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Value, Vote

ROLLBACK, LR_SCALE, SKIP = "run.rollback", "optimizer.lr_scale", "data.skip"
SYMPTOMS = {"up": "policy_collapse", "down": "heldout_loss_rises"}
"""Symptom of a drop, by the direction in which the held-out metric is better."""


class BestCheckpoint(Agent):
    """Signals: a held-out reading that is worse than the best one, whatever the cause. The drop must exceed
    MIN_LOST_SHARE of what the run has learnt (the best reading minus the first), MIN_RELATIVE_LOSS of the best reading,
    the noise, and MIN_FALL_RATIO times any earlier drop. The mean of two or three consecutive readings may meet these
    conditions with less noise. A single reading must drop SINGLE_READING_FACTOR times as far, unless the run can
    measure on request and a second reading agrees (oven_agents.stats.evaluation_request). An alert needs
    several readings that are all much worse than the best of the whole run, even after a slow decline
    (oven_agents.stats.held_out_decline).

    Actions: rolls back to the best reading. This is early stopping with the best weights restored (Prechelt 1998,
    "Early stopping – but when?", doi 10.1007/3-540-49430-8_3, criterion GL), except that the run continues. If data can
    be skipped and steps have not become longer, the agent also skips SKIPPED_BATCHES batches. Otherwise, or if a skip
    was tried, it also cuts the rate, by its growth or by CUT, because a rollback alone is not enough. Three cases get a
    rollback alone at first. Quality may have dropped suddenly, from one reading to the next. Steps may have become
    longer at the same rate: the rollback also restores the moments. Or the weights may have moved by more than the
    steps. If the rate was cut since the best reading, the first rollback has no second cut. After MAX_ROLLBACKS
    rollbacks without a new best, the agent leaves the run alone. After a failed rollback
    (oven_agents.stats.rollback_success), it only rolls back if the rate has grown. It does nothing if completions were
    sampled from a different policy (oven_agents.stats.policy_shift).

    False alarms: noise is the deviation of the readings around a trend. The threshold is SIGMAS deviations beyond the
    expected maximum of as many noisy values as there are readings. A few readings give a poor estimate of the noise,
    hence the comparison with earlier drops. With independent normal noise and 6 to 30 readings, 7 in 1,000 readings are
    false alarms if there is only noise or a slow trend, and 4 in 1,000 if the run improved by twenty times the noise. A
    second reading makes them rarer. With 10 to 100 such readings, 2 to 3 of 100 runs that learnt nothing had a false
    alert, and none of 500 that learnt.

    Limits: the agent reacts late if readings are rare, and it needs more than MIN_READINGS of them. It does not see
    harm that only slows the gain. It rolls back to the best reading and not to the last healthy step, so up to one
    interval between readings is lost as well.
    """

    moves = (ROLLBACK, LR_SCALE, SKIP, EVALUATE)
    options = dict.fromkeys(("min_lost_share", "min_relative_loss", "confidence", "second_confidence"), SHARE_BOUNDS)

    MIN_READINGS = 5
    """Minimum number of held-out readings before the newest. Fewer give a poor estimate of their noise."""
    MIN_LOST_SHARE = 0.1
    """Minimum drop, as a fraction of what the run has learnt."""
    SIGMAS = 3.3
    """Minimum drop beyond the expected maximum of the noise, in standard deviations. See the false alarms above."""
    MIN_RELATIVE_LOSS = 0.02
    """Minimum drop, as a fraction of the best reading. It matters only if the run has learnt little."""
    MIN_FALL_RATIO = 2.0
    """Minimum drop, as a multiple of the largest earlier drop. It matters if the readings go up and down."""
    SINGLE_READING_FACTOR = 2.0
    """Multiple of the limits above that a single reading must exceed if there is no second one."""
    CAUSAL_GROWTH = 1.8
    """Minimum growth at which the rate, or the step length, counts as the cause. Less is often noise."""
    CUT = 8.0
    """Divisor of the rate in a cut if the rate has not grown."""
    SKIPPED_BATCHES = 100
    """Number of batches to skip, as for divergence. Too few leave the run in bad data, and too many cost good data."""
    MAX_ROLLBACKS = 2
    """Maximum number of rollbacks since the best reading. More of them would not help."""
    CONFIDENCE = 0.7
    """Confidence of a first rollback, set from measured outcomes."""
    SECOND_CONFIDENCE = FIRM_CONFIDENCE
    """Confidence of a second rollback."""
    MAX_READINGS = 40
    """Maximum number of held-out readings to use, the newest ones."""
    MAX_AVERAGED = 3
    """Maximum number of consecutive readings to average. More readings reduce the noise but take longer."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out_metric(run) is None:
            return "the run announces no held-out metric with a direction, so nothing shows whether the run got worse"
        return None

    def alerts(self, window: Window) -> Sequence[Alert]:
        metric = held_out_metric(window.run)
        finite = [(tick, value) for tick, value in readings(window) if math.isfinite(value)]
        values = [value for _, value in finite]
        if metric is None or not is_active(
            len(values),
            lambda end: is_past_best(values[: end + 1]),
            lambda end: values[end] >= max(values[: end + 1]),
        ):
            return []
        tick, best = max(finite, key=lambda reading: reading[1])
        old, new = apply_sign(metric, best), apply_sign(metric, values[-1])
        count = len(values) - 1 - values.index(best)
        why = (
            f"{metric.name} was best at tick {tick} ({old:.4g}) and is {new:.4g} after {count} readings without a "
            f"better one: the run is overfitting or losing what it learnt. Stop it, or make it end with the best "
            f"weights (oven-controller set {BEST} best)"
        )
        symptom = "reward_up_heldout_down" if objective(window.run).name == "reward" else "heldout_loss_rises"
        return [window.alert(symptom, metric.name, value=new, expected=old, why=why)]

    def vote(self, window: Window) -> Alternatives | Vote | None:
        metric = held_out_metric(window.run)
        if metric is None or not {ROLLBACK, LR_SCALE} <= window.knobs.keys() or shrink_share(window) > 0.5:
            return None  # the weight_decay agent handles shrinking weights, which the rate does not cause
        points = readings(window, last=self.MAX_READINGS)
        values = [value for _, value in points]
        newest_tick = points[-1][0] if points else -1
        if not window.is_new(newest_tick) or len(values) <= self.MIN_READINGS or not all(map(math.isfinite, values)):
            return None
        share = self.lost_share(values)
        best_tick, best = max(points[:-1], key=lambda reading: reading[1])
        rollbacks = [receipt for receipt in window.applied(ROLLBACK) if receipt.tick > best_tick]
        if share is None or len(rollbacks) >= self.MAX_ROLLBACKS or is_off_policy(window, best_tick):
            return None
        steps = {tick: step for tick, step, _ in window.earlier} | {o.tick: o.step for o in window.observations}
        best_step = steps[best_tick]
        skip_ticks = {receipt.tick for receipt in window.applied(SKIP)}
        # A rollback to the best reading, or one with a skip, has already been tried.
        was_tried = any(_to_number(receipt.after) <= best_step or receipt.tick in skip_ticks for receipt in rollbacks)
        old, new = apply_sign(metric, best), apply_sign(metric, values[-1])
        why = f"{metric.name} went from {old:.4g} at tick {best_tick} to {new:.4g} and lost {share:.0%} of its progress"
        bad_count = self._count_bad_readings(values)
        if bad_count == 1 and any(receipt.tick >= newest_tick - 1 for receipt in window.applied(EVALUATE)):
            return None  # a person or agent with more information requested the reading, and decides
        if bad_count == 1 and can_evaluate(window) and self.lost_share(values, self.SINGLE_READING_FACTOR) is None:
            return request_evaluation(window, why)
        was_cut = not was_tried and any(receipt.tick > best_tick for receipt in window.applied(LR_SCALE))
        last_good_tick, _ = points[-bad_count - 1]
        may_not_recur = was_cut or best_tick == last_good_tick  # the cause was treated, or quality fell at once
        choice = self._choose_remedy(window, best_tick, was_tried, may_not_recur=may_not_recur)
        if choice is None:
            return None
        remedy, changes, text = choice
        why += f": roll back to tick {best_tick}{text}"
        plan = Plan.of_changes(
            window, remedy, {ROLLBACK: float(best_tick), **changes},
            confidence=self.SECOND_CONFIDENCE if was_tried else self.CONFIDENCE, why=why, target=metric.name,
            expected_change=apply_sign(metric, round(best - values[-1], 4)), horizon=40, reads=(metric.name,),
        )  # fmt: skip
        return offer([plan], {SYMPTOMS[metric.better]: min(1.0, share)})

    def can_review(self, run: RunStarted) -> bool:
        return held_out_metric(run) is not None

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return review_change(ballot, window, held_out_health)

    def _choose_remedy(
        self, window: Window, best_tick: int, was_tried: bool, *, may_not_recur: bool
    ) -> tuple[str, dict[str, float], str] | None:
        """Return the remedy's name, its changes in addition to the rollback, and the end of the vote's reason. Return
        None if every remedy was tried already. If the cause `may_not_recur`, a rollback alone may be enough."""
        rate_growth, length_growth = growth_of(window, LEARNING_RATE), growth_of(window, UPDATE_RATIO)
        if rate_growth < self.CAUSAL_GROWTH and last_rollback_failed(window):
            return None
        if not was_tried and rate_growth < self.CAUSAL_GROWTH:
            if SKIP in window.knobs and length_growth < self.CAUSAL_GROWTH:
                text = f" and skip {self.SKIPPED_BATCHES} batches"
                return "rollback_and_skip", {SKIP: float(self.SKIPPED_BATCHES)}, text
            if may_not_recur or length_growth >= self.CAUSAL_GROWTH:
                return "rollback", {}, ""
        if unexplained_jump(window, best_tick, window.tick - best_tick):  # only further steps repair such weights
            return None if was_tried else ("rollback", {}, "")
        knob = window.knobs[LR_SCALE]
        lowered = knob.lowered_to(knob.number / (rate_growth if rate_growth >= self.CAUSAL_GROWTH else self.CUT))
        if lowered is None:
            return None
        return "rollback_and_cut", {LR_SCALE: lowered}, f" and {LR_SCALE} {knob.number:.3g} → {lowered:.3g}"

    def _count_bad_readings(self, values: Sequence[float]) -> int:
        """Return the number of consecutive newest readings that show the drop."""
        end = len(values)
        while end > self.MIN_READINGS and self.lost_share(values[:end]) is not None:
            end -= 1
        return len(values) - end

    def lost_share(self, values: Sequence[float], factor: float = 1.0) -> float | None:
        """Return the share of what was learnt that the newest readings have lost, or None if the loss is within the
        limits. `factor` multiplies the limits. `values` has at least four values, oldest first. Higher is better."""
        max_count = max(1, min(self.MAX_AVERAGED, len(values) - self.MIN_READINGS))
        shares = (self._averaged_lost_share(values, count, factor) for count in range(1, max_count + 1))
        return next((share for share in shares if share is not None), None)

    def _averaged_lost_share(self, values: Sequence[float], count: int, factor: float) -> float | None:
        """Return the lost share for the mean of the newest `count` readings. The last one must not have recovered."""
        before, newest = values[:-count], values[-count:]
        best, deviation = max(before), bending_noise(before)
        learnt, lost = best - before[0], best - fmean(newest)
        noise = (expected_maximum(len(before)) + self.SIGMAS) * deviation / math.sqrt(count)
        min_drop = factor * max(
            self.MIN_LOST_SHARE * learnt,
            self.MIN_RELATIVE_LOSS * abs(best),
            noise,
            self.MIN_FALL_RATIO * largest_fall(before),
        )
        has_recovered = best - newest[-1] <= min_drop / 2
        return lost / max(learnt, lost) if lost > min_drop and not has_recovered else None


def _to_number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.inf

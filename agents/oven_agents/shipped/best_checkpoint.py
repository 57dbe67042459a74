"""Rolls back to the best held-out reading when quality has fallen by more than noise, whatever the cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from statistics import fmean

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.evaluation_request import available, request_evaluation
from oven_agents.stats.objective import held_out, objective, readings, signed
from oven_agents.stats.optimizer_gauges import LENGTH, RATE, grown, shrink_share, unexplained_jump
from oven_agents.stats.policy_shift import is_off_policy
from oven_agents.stats.robust_statistics import bending_noise
from oven_agents.stats.rollback_success import last_rollback_failed
from oven_agents.stats.symptoms import stands
from oven_core.protocol.actuator_names import BEST, EVALUATE
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import RunStarted, Value, Vote

ROLLBACK, SCALE, SKIP = "run.rollback", "optimizer.lr_scale", "data.skip"
SYMPTOMS = {"up": "policy_collapse", "down": "heldout_loss_rises"}


class BestCheckpoint(Agent):
    """Signals: a held-out reading that is worse than the best one, whatever the cause. It must have lost PLAINLY of
    what the run has learnt (the best reading minus the first), LEAST of the best reading's size, more than noise
    explains, and UNUSUAL times as much as any reading before it. The mean of two or three readings in a row may meet
    these conditions with less noise. A single reading must have lost BEYOND times as much, unless the run can measure
    on request and a second one agrees (oven_agents.stats.evaluation_request).

    An alert: IN_A_ROW readings are that much worse than the best of the whole run, also after a slow rise.

    Actions: early stopping with the best weights restored (Prechelt 1998, "Early stopping – but when?", doi
    10.1007/3-540-49430-8_3, criterion GL), except that the run continues. If data can be skipped and steps have not
    grown, it skips PASSED batches. Otherwise, or if that was tried, it cuts the rate together with the rollback
    (neither alone is enough), by its growth or by CUT. A loss from one reading to the next, and steps that grew at the
    same rate (their moments go back too), first get a rollback alone, and so do weights that moved by more than steps
    do. If the rate fell since the best reading, there is no second cut. After ATTEMPTS rollbacks without a new best it
    leaves the run alone; after a failed one (oven_agents.stats.rollback_success) it only goes back if the rate has
    grown; and it does nothing if completions were another policy's (oven_agents.stats.policy_shift).

    False alarms: noise is the deviation of the readings around a trend; the threshold is SIGMAS of it beyond the luck
    of the best of as many readings. Few readings estimate it badly, hence the comparison with earlier falls. With
    independent normal noise and 6 to 30 readings: 7 in 1,000 readings if there is only noise or a slow trend, 4 if a
    run learnt twenty times its deviation; a second reading makes them rarer. Of runs of 10 to 100 readings with such
    noise, 2 to 3 in 100 had a false alert if nothing was learnt, and none of 500 that learnt.

    Limits: the agent is as late as readings are rare and needs more than LEARNT of them. It
    does not see harm that only slows the gain. It goes back to the best reading and not to the last healthy step, so up
    to one interval between readings is lost with the harm.
    """

    moves = (ROLLBACK, SCALE, SKIP, EVALUATE)
    speciality = (ROLLBACK, SCALE, SKIP, EVALUATE)
    options = dict.fromkeys(("plainly", "least", "sure", "again"), SHARE)

    LEARNT = 5
    """Held-out readings before the one that is judged. Fewer estimate their noise badly."""
    PLAINLY = 0.1
    """Share of what the run has learnt, 0 to 1, that must be lost. Two slightly bad readings in a row doubled the false
    alarms and found nothing more."""
    SIGMAS = 3.3
    """Deviations of a reading's noise, beyond the luck of the best one, that must be lost: see the false alarms
    above."""
    LEAST = 0.02
    """Share of the best reading's size, 0 to 1, that must be lost if the run has learnt little."""
    UNUSUAL = 2.0
    """Multiple of the largest earlier fall below the best. It recognises runs whose readings go up and down."""
    BEYOND = 2.0
    """Multiple of the limits above that a single reading must exceed to need no second one."""
    LONGER = 1.8
    """Growth of the rate, or of a step's length, from which it is the cause. Less would often be noise of the
    length."""
    CUT = 8.0
    """Factor of the cut. A quarter instead was slightly worse twice."""
    PASSED = 100
    """Batches to skip, as for divergence. Too few leave the run in a bad stretch, too many cost good data."""
    ATTEMPTS = 2
    """Rollbacks since the best reading after which the agent leaves the run alone. More of them would not help."""
    SURE = 0.7
    """Confidence of a first rollback, from outcomes."""
    AGAIN = 0.65
    """Confidence of a second rollback: the lowest that still decides alone by default."""
    READINGS = 40
    """The most held-out readings to use, the newest."""
    IN_A_ROW = 3
    """Maximum readings in a row whose mean is compared with the best. More readings reduce the noise but come later."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing says that the run got worse"
        return None

    def alerts(self, window: Window) -> Sequence[Alert]:
        metric = held_out(window.run)
        seen = [reading for reading in readings(window) if math.isfinite(reading[1])]
        values = [value for _, value in seen]
        if metric is None or not stands(
            len(values),
            lambda end: self.past_best(values[: end + 1]),
            lambda end: values[end] >= max(values[: end + 1]),
        ):
            return []
        tick, best = max(seen, key=lambda reading: reading[1])
        was, now, since = signed(metric, best), signed(metric, values[-1]), len(values) - 1 - values.index(best)
        why = (
            f"{metric.name} was best at tick {tick} ({was:.4g}) and is {now:.4g} after {since} readings without a "
            f"better one: the run overfits, or loses what it learnt. End it, or let it end with the best weights "
            f"(oven-controller set {BEST} best)"
        )
        symptom = "reward_up_heldout_down" if objective(window.run).name == "reward" else "heldout_loss_rises"
        return [window.alert(symptom, metric.name, value=now, expected=was, why=why)]

    def past_best(self, values: Sequence[float]) -> bool:
        """Return whether the newest readings are all worse than the best one: by LEAST of its size, more than noise
        explains, and UNUSUAL times the largest fall before it. Slow rises count, unlike in `lost`."""
        before = values[: values.index(max(values)) + 1]
        if len(values) - len(before) < self.IN_A_ROW or len(values) <= self.LEARNT:
            return False
        best, luck = before[-1], math.sqrt(2 * math.log(len(values)))
        noise = (luck + self.SIGMAS) * bending_noise(values)
        least = max(self.LEAST * abs(best), noise, self.UNUSUAL * _largest_fall(before))
        return best - max(values[-self.IN_A_ROW :]) > least

    def vote(self, window: Window) -> Alternatives | Vote | None:
        metric = held_out(window.run)
        if metric is None or not {ROLLBACK, SCALE} <= window.knobs.keys() or shrink_share(window) > 0.5:
            return None  # shrinking weights are the weight_decay agent's task, and not caused by the rate
        seen = readings(window, last=self.READINGS)
        if not seen or not window.is_new(seen[-1][0]):
            return None
        values = [value for _, value in seen]
        if len(values) <= self.LEARNT or not all(map(math.isfinite, values)):
            return None
        share = self.lost(values)
        best_tick, best = max(seen[:-1], key=lambda reading: reading[1])
        back = [receipt for receipt in window.applied(ROLLBACK) if receipt.tick > best_tick]
        if share is None or len(back) >= self.ATTEMPTS or is_off_policy(window, best_tick):
            return None
        step = next(o.step for o in window.observations if o.tick == best_tick)
        passed = {receipt.tick for receipt in window.applied(SKIP)}
        tried = any(_number(receipt.after) <= step or receipt.tick in passed for receipt in back)
        was, now = signed(metric, best), signed(metric, values[-1])
        why = (
            f"{metric.name} was {was:.4g} at tick {best_tick} and is {now:.4g}: {share:.0%} of what was learnt is lost"
        )
        low = self._low(values)
        if low == 1 and any(receipt.tick >= seen[-1][0] - 1 for receipt in window.applied(EVALUATE)):
            return None  # a person or agent that saw more asked for it, and decides
        if low == 1 and available(window) and self.lost(values, self.BEYOND) is None:
            return request_evaluation(window, why)
        slowed = not tried and any(receipt.tick > best_tick for receipt in window.applied(SCALE))
        remedy_found = self._remedy(window, best_tick, tried, once=slowed or best_tick == seen[-low - 1][0])
        if remedy_found is None:
            return None
        remedy, changes, also = remedy_found
        why += f"; back to tick {best_tick}{also}"
        plan = Plan.of_changes(
            window, remedy, {ROLLBACK: float(best_tick), **changes}, confidence=self.AGAIN if tried else self.SURE,
            why=why, target=metric.name, expected_change=signed(metric, round(best - values[-1], 4)), horizon=40,
        )  # fmt: skip
        return offer([plan], {SYMPTOMS[metric.better]: min(1.0, share)})

    def _remedy(
        self, window: Window, tick: int, tried: bool, *, once: bool
    ) -> tuple[str, dict[str, float], str] | None:
        """Return its name, the changes in addition to the rollback, and these in words. `once`: the same rate need not
        lose it again. None if nothing is left that differs from the last attempt."""
        rate, longer = (grown(window, name) for name in (RATE, LENGTH))
        if rate < self.LONGER and last_rollback_failed(window):
            return None
        if not tried and rate < self.LONGER:
            if SKIP in window.knobs and longer < self.LONGER:
                return "rollback_and_skip", {SKIP: float(self.PASSED)}, f", past {self.PASSED} batches"
            if once or longer >= self.LONGER:
                return "rollback", {}, ""
        if unexplained_jump(window, tick, window.tick - tick):  # only further steps repair such weights
            return None if tried else ("rollback", {}, "")
        knob = window.knobs[SCALE]
        lowered = knob.bounded(knob.number / (rate if rate >= self.LONGER else self.CUT))
        if lowered > knob.number / 1.2:
            return None
        return "rollback_and_cut", {SCALE: lowered}, f", {SCALE} {knob.number:.3g} → {lowered:.3g}"

    def _low(self, values: Sequence[float]) -> int:
        """Return how many of the newest readings in a row show the loss."""
        shorter = (values[:end] for end in range(len(values), self.LEARNT, -1))
        return sum(1 for _ in takewhile(lambda prefix: self.lost(prefix) is not None, shorter))

    def lost(self, values: Sequence[float], times: float = 1.0) -> float | None:
        """Return the share of what was learnt that the newest reading lost, if that is clear, or `times` as much;
        otherwise None. Takes at least four values, oldest first, higher ones better."""
        most = max(1, min(self.IN_A_ROW, len(values) - self.LEARNT))
        return next(
            (share for count in range(1, most + 1) if (share := self._lost(values, count, times)) is not None), None
        )

    def _lost(self, values: Sequence[float], count: int, times: float) -> float | None:
        """Return the same for the mean of the newest `count` readings, of which the last must not have recovered."""
        before, newest = values[:-count], values[-count:]
        best, deviation = max(before), bending_noise(before)
        learnt, lost = best - before[0], best - fmean(newest)
        luck = math.sqrt(2 * math.log(len(before)))  # maximum deviations of the best of n readings above their level
        noise = (luck + self.SIGMAS) * deviation / math.sqrt(count)
        least = times * max(self.PLAINLY * learnt, self.LEAST * abs(best), noise, self.UNUSUAL * _largest_fall(before))
        return lost / max(learnt, lost) if lost > least and best - newest[-1] > least / 2 else None


def _largest_fall(values: Sequence[float]) -> float:
    """Return how far a value fell below the best one before it."""
    return max(high - value for high, value in zip(accumulate(values, max), values, strict=True))


def _number(value: Value) -> float:
    return float(value) if isinstance(value, int | float) else math.inf

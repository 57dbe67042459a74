"""Detects a diverging run and proposes a remedy.

The signs are a loss that jumps, rises slowly or is not finite, weights that moved without a matching update, and a huge
gradient that was not clipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import ClassVar

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats import optimizer_gauges as gauges
from oven_agents.stats.confidence import estimate_confidence
from oven_agents.stats.evaluation_request import held_out_evidence, request_evaluation
from oven_agents.stats.health import objective_health
from oven_agents.stats.level_shift import standardised_rise
from oven_agents.stats.objective import apply_sign, objective, readings
from oven_agents.stats.reviews import review_change
from oven_agents.stats.robust_statistics import noise, steps_since_rise
from oven_agents.stats.rollback_success import last_rollback_failed, rollbacks_exhausted
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

ROLLBACK, LR_SCALE, SKIP, MIXTURE = "run.rollback", "optimizer.lr_scale", "data.skip", "data.mixture"
LOSS = "loss"
GAUGES = ("loss", "grad_norm", "reward")
"""Metrics that must be finite."""
DEFAULT_GAIN = 0.05
"""Forecast gain of the objective if the extent of the harm is unknown."""
ROLLBACK_AND_SKIP, ROLLBACK_AND_CUT, ROLLBACK_ONLY = "rollback_and_skip", "rollback_and_cut", "rollback"
SKIP_ONLY = "skip_batches"


@dataclass(frozen=True, slots=True)
class _Harm:
    """Harm that was detected, with the remedies that may undo it."""

    symptom: str
    severity: float
    onset: int
    """Tick of the first sign."""
    why: str
    excess: float = 0.0
    """Mean of the loss minus its level, over the ticks that a rollback discards. It is 0 if unknown."""
    level: float = 0.0
    """Level of the loss, or of the reward, before the harm."""
    remedies: tuple[str, ...] = (ROLLBACK_AND_SKIP, ROLLBACK_AND_CUT, ROLLBACK_ONLY)
    """Remedies, the most likely first."""
    may_retry: bool = False
    """Whether remedies may be tried again, because the run has nothing to lose."""
    is_visible: bool = True
    """Whether held-out data show the harm at once. They do not if the moments are damaged or a value is not finite."""
    confidence: float = 0.75
    """Share of similar cases in which a rollback helped."""
    reads: tuple[str, ...] = (LOSS,)
    """The metrics that show the harm."""


class Divergence(Agent):
    """Signals: five signs, checked in this order. (1) A gauge is not finite. (2) The norm of the weights changed by
    more than the update. (3) A gradient was ten times larger than any of the last 32 and made steps 1.5 times as long.
    So no clip stopped it, and the moments still contain it. (4) The loss jumped (three values in a row above 3σ) and
    does not fall back by half. (5) The loss creeps up (rises slowly). Either a mean of ten values is above 4.5 standard
    errors and the held-out loss is worse, or a mean of five is above 3 standard errors and steps are longer. The
    gradient, the step length or a held-out reading must confirm the last two signs, because a loss that changes alone
    may be reported in another unit.

    Actions: offers up to three remedies, the most likely first. The first is a rollback that then skips the batches
    (PaLM, Chowdhery et al. 2022, arXiv 2204.02311, §5.1: only those batches with those weights caused the spike). The
    second is a rollback and a cut of the rate, because neither alone repairs a rate that is too high. The cut reverses
    the growth of the rate, or divides the rate by CUT if successive gradients cancel each other. The agent does not cut
    while something else moves the weights. The third is a rollback alone, for damaged weights or moments. All rollbacks
    go back to before the most likely onset of the rise (oven_agents.stats.robust_statistics). If the run can measure on
    request, a held-out reading must first confirm displaced weights or a risen loss. If held-out quality fell by less
    than WEIGHTS_SHARE of the loss's rise, the agent only skips the batches. It rolls back later if the loss stays high
    and a newer reading shows damage. A remedy is not offered twice within MEMORY ticks. Once rollbacks are exhausted,
    it acts only on values that are not finite. After a failed rollback (oven_agents.stats.rollback_success), a risen
    loss only leads to a skip, or a rollback with a cut if gradients are opposed or steps are longer.

    False alarms: the first two signs have none on independent noise. For gradient norms with a log-normal spread of
    0.5, less than one step in 10⁵ is an outlier, before the step length is checked. For a jump, the rate is 10⁻⁸ per
    step, and below 10⁻⁵ if σ is underestimated by a third. For the two kinds of slow rise, it is 10⁻⁵ and 10⁻³ before
    the confirmation.

    Limits: under a reward (GRPO), only the first two signs count, because the loss has no level. Gradient outliers
    recur there, because they come from a ratio of probabilities: of seven runs that rolled back because of one, six
    were no better. The agent needs snapshots from before the harm.
    """

    needs = (LOSS,)
    moves = (ROLLBACK, LR_SCALE, SKIP, EVALUATE)
    options = dict.fromkeys(
        (
            "healed_share", "min_held_out_loss", "weights_share", "jump_confidence", "creep_confidence",
            "nan_confidence", "second_confidence", "skip_confidence",
        ),
        SHARE_BOUNDS,
    )  # fmt: skip

    HIGH_DEVIATIONS = 3.0
    """Minimum height of a high loss above its level, in standard deviations of the noise."""
    JUMP_LENGTH = 3
    """Number of consecutive high values that make a jump."""
    CREEP_ERRORS = 4.5
    """Standard errors by which the mean of RECENT_TICKS values must exceed the level in a slow rise."""
    RECENT_TICKS = 10
    """Number of newest ticks for a slow rise and a gradient outlier. An older jump is the new level of the loss."""
    SHORT_CREEP_ERRORS = 3.0
    """Standard errors by which the mean of SHORT_CREEP_TICKS values must exceed the level if steps became longer."""
    SHORT_CREEP_TICKS = 5
    """Number of newest ticks for a slow rise if steps became longer."""
    REFERENCE = 32
    """Number of earlier ticks that give the level and the noise. More would lag behind a falling loss."""
    CAUSAL_GROWTH = 1.8
    """Minimum growth at which the rate, or the step length, counts as the cause. Less is often noise."""
    HEALED_SHARE = 0.5
    """Share of its maximum height, 0 to 1, below which a jump counts as recovering by itself."""
    MIN_HELD_OUT_LOSS = 0.004
    """Minimum drop of quality, as a fraction of a held-out reading. A smaller drop may be chance."""
    WEIGHTS_SHARE = 0.3
    """Relative drop of held-out quality divided by the relative rise of the loss, 0 to 1, above which the weights are
    damaged. Below it, skipping the batches works about as well as a rollback."""
    OUTLIER_FACTOR = 10.0
    """Multiple of the largest norm of the last REFERENCE ticks above which a norm is an outlier."""
    UNCLIPPED_GROWTH = 1.5
    """Minimum growth of the step length after an outlier. If it is smaller, the gradient was clipped."""
    ROLLBACK_MARGIN = 2
    """Number of ticks to roll back before the first sign. Weights may be damaged one step earlier."""
    CUT = 8.0
    """Divisor of the rate if it has not grown. It undid 90 % of the harm of a rate that was 25 times too high."""
    SKIPPED_BATCHES = 100
    """Number of batches to skip. PaLM skipped 200 to 500 in a far longer run."""
    MEMORY = 60
    """Number of ticks for which a remedy counts as tried. With more, a second fault would get no remedy."""
    RELAPSE_TICKS = 8
    """Number of ticks after a rollback in which new harm is attributed to a damaged snapshot."""
    HORIZON = 20
    """Number of ticks after which the forecast is judged. A rollback restores the loss at once or not at all."""
    MIN_GAUGE_SHIFT: ClassVar[dict[str, float]] = {gauges.GRAD_NORM: 3.0, gauges.UPDATE_RATIO: 6.0}
    """Standard deviations by which another gauge must move together with the loss. The bound for the step length is
    higher because the lengths of successive steps are not independent."""
    JUMP_CONFIDENCE = 0.7
    """Confidence for a jump. This and the confidences below were set from measured outcomes."""
    CREEP_CONFIDENCE = 0.7
    """Confidence for a slow rise."""
    NAN_CONFIDENCE = 0.65
    """Confidence for values that are not finite. They may need several attempts."""
    SECOND_CONFIDENCE = 0.7
    """Maximum confidence for a second remedy."""
    SKIP_CONFIDENCE = 0.65
    """Confidence for skipped batches. The fault may continue in later batches."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if ROLLBACK not in {spec.name for spec in run.actuators}:
            return f"the run announces no {ROLLBACK}, so no snapshot can be restored"
        return None

    def vote(self, window: Window) -> Alternatives | Vote | None:
        harm = (
            self._find_non_finite_gauge(window)
            or self._find_displaced_weights(window)
            or self._find_gradient_outlier(window)
            or self._find_risen_loss(window)
        )
        if harm is None or (rollbacks_exhausted(window) and harm.symptom != "loss_nan"):
            return None
        return self._weigh_evidence(window, harm) if harm.is_visible else self._offer(window, harm)

    def can_review(self, run: RunStarted) -> bool:
        return any(metric.name == objective(run).name for metric in run.metrics)

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return review_change(ballot, window, objective_health)

    def _weigh_evidence(self, window: Window, harm: _Harm) -> Alternatives | Vote | None:
        """Offer remedies if a held-out reading confirms the harm, or request a reading."""
        evidence = held_out_evidence(window, harm.onset, self._last_skip_tick(window, harm.onset))
        if evidence.state == "ask":
            return request_evaluation(window, harm.why)
        if evidence.state == "wait":
            return None
        if evidence.state == "known":
            drop = evidence.quality_drop
            if drop <= self.MIN_HELD_OUT_LOSS:
                return None
            if not harm.excess and math.isfinite(drop):
                harm = replace(harm, excess=drop * harm.level)
            are_weights_intact = drop * abs(harm.level) < self.WEIGHTS_SHARE * harm.excess
            if harm.remedies[0] == ROLLBACK_AND_SKIP and are_weights_intact:
                harm = replace(harm, remedies=(SKIP_ONLY,), confidence=self.SKIP_CONFIDENCE)
        return self._offer(window, harm)

    def _last_skip_tick(self, window: Window, onset: int) -> int:
        """Return the tick of the last skip since `onset` that was not part of a rollback, or −1 if there is none."""
        rollbacks = {receipt.tick for receipt in window.applied(ROLLBACK)}
        return max((r.tick for r in window.applied(SKIP) if r.tick >= onset and r.tick not in rollbacks), default=-1)

    def _find_non_finite_gauge(self, window: Window) -> _Harm | None:
        gauge = next((name for name in GAUGES if not math.isfinite(window.last.metrics.get(name, 0.0))), "")
        if not gauge:
            return None
        first = window.tick
        for observation in reversed(window.observations):
            if all(math.isfinite(observation.metrics.get(name, 0.0)) for name in GAUGES):
                break
            first = observation.tick
        why = f"{gauge} has not been finite since tick {first}"
        return _Harm("loss_nan", 1.0, first, why, may_retry=True, is_visible=False, confidence=self.NAN_CONFIDENCE)

    def _find_displaced_weights(self, window: Window) -> _Harm | None:
        displacement = gauges.unexplained_jump(window, window.last_change_tick(ROLLBACK))
        if displacement is None:
            return None
        tick, excess = displacement
        why = f"the norm of the weights changed by {excess:.1%} more than the update of tick {tick - 1} explains"
        before = [
            value
            for measured_at, value in window.surviving_series(objective(window.run).name, last=self.REFERENCE)
            if measured_at < tick
        ]
        level = abs(median(before)) if before else 0.0
        return _Harm(
            "weights_displaced", 1.0, tick, why, level=level, remedies=(ROLLBACK_ONLY,), may_retry=True,
            reads=(gauges.WEIGHT_NORM,),
        )  # fmt: skip

    def _find_gradient_outlier(self, window: Window) -> _Harm | None:
        """Look for a gradient outlier in the last few ticks. The length of the newest step may not show it yet."""
        if objective(window.run).name != LOSS:
            return None
        norms = window.surviving_series(gauges.GRAD_NORM, last=self.REFERENCE + self.RECENT_TICKS)
        values = [value for _, value in norms]
        if len(values) < self.REFERENCE // 2 + self.RECENT_TICKS or not all(map(math.isfinite, values)):
            return None
        previous_max = max(values[: -self.RECENT_TICKS] + self._discarded_norms(window))
        recent = norms[-self.RECENT_TICKS : -1]
        outliers = [(tick, norm) for tick, norm in recent if norm > self.OUTLIER_FACTOR * previous_max]
        if not outliers or gauges.growth_of(window, gauges.UPDATE_RATIO) < self.UNCLIPPED_GROWTH:
            return None
        tick, norm = outliers[0]
        why = (
            f"a gradient of norm {norm:.3g}, {norm / previous_max:.0f} times the previous maximum, was not clipped at "
            f"tick {tick}"
        )
        remedies = (ROLLBACK_ONLY, ROLLBACK_AND_SKIP)
        return _Harm(
            "grad_norm_spike", 1.0, tick, why, remedies=remedies, may_retry=True, is_visible=False,
            reads=(gauges.GRAD_NORM,),
        )  # fmt: skip

    def _discarded_norms(self, window: Window) -> list[float]:
        """Return norms from before the last rollback. Similar norms after the rollback are not outliers."""
        rollback_tick = window.last_change_tick(ROLLBACK)
        first_tick = rollback_tick - self.REFERENCE
        discarded = [o for o in window.observations if first_tick < o.tick <= rollback_tick]
        norms = [observation.metrics.get(gauges.GRAD_NORM, math.nan) for observation in discarded]
        return [norm for norm in norms if math.isfinite(norm)]

    def _find_risen_loss(self, window: Window) -> _Harm | None:
        """Return harm from a risen loss, or None if there are too few measurements since the last change."""
        if objective(window.run).name != LOSS:
            return None
        since = window.last_change_tick(ROLLBACK, LR_SCALE, SKIP)
        losses = window.surviving_series(
            LOSS, after=window.last_change_tick(MIXTURE), last=self.REFERENCE + self.RECENT_TICKS
        )
        finite = [(tick, value) for tick, value in losses if math.isfinite(value)]
        new_count = sum(tick > since for tick, _ in finite)
        if new_count < self.JUMP_LENGTH or len(finite) < self.REFERENCE // 2:
            return None
        harm = self._find_jump(window, finite) or self._find_slow_rise(window, finite, new_count)
        return harm if harm and self._is_confirmed(window, harm.onset) else None

    def _is_confirmed(self, window: Window, onset: int) -> bool:
        """Return whether the gradient norm, the step length or a newer held-out reading moved with the loss. A loss
        that moves alone may be reported in another unit. Return True if neither norm nor length can be compared."""
        shifts = [(gauges.log_shift(window, metric, onset), bound) for metric, bound in self.MIN_GAUGE_SHIFT.items()]
        known_shifts = [(abs(shift), bound) for shift, bound in shifts if shift is not None]
        if not known_shifts or any(shift > bound for shift, bound in known_shifts):
            return True
        return _held_out_worsened(window, onset)

    def _find_jump(self, window: Window, losses: list[tuple[int, float]]) -> _Harm | None:
        """Return harm if the newest losses are all high and the loss has not mostly recovered."""
        values = [value for _, value in losses]
        before = values[: -self.JUMP_LENGTH]
        level = median(before)
        spread = max(noise(before), 1e-3 * abs(level))
        threshold = level + self.HIGH_DEVIATIONS * spread
        if min(values[-self.JUMP_LENGTH :]) <= threshold:
            return None
        high_count = next((i for i, value in enumerate(reversed(values)) if value <= threshold), len(values))
        excess = values[-1] - level
        if high_count > self.RECENT_TICKS or excess < self.HEALED_SHARE * (max(values[-high_count:]) - level):
            return None  # the loss has a new level, or it recovers
        rise_length = steps_since_rise(values[-2 * self.RECENT_TICKS :], level)
        onset, _ = losses[-rise_length]
        why = f"{LOSS} jumped from {level:.3g} (noise {spread:.2g}) to {values[-1]:.3g} at tick {onset} and stayed high"
        severity = min(1.0, excess / (8 * spread))
        discarded_values = values[-rise_length - self.ROLLBACK_MARGIN + 1 :]
        mean_excess = fmean(discarded_values) - level
        remedies = self._likely_remedies(window, onset)
        return _Harm("loss_spike", severity, onset, why, mean_excess, level, remedies, confidence=self.JUMP_CONFIDENCE)

    def _find_slow_rise(self, window: Window, losses: list[tuple[int, float]], new_count: int) -> _Harm | None:
        """Return harm if the mean of the newest losses is high, over fewer ticks if steps became longer."""
        values = [value for _, value in losses]
        steps_grew = gauges.growth_of(window, gauges.UPDATE_RATIO) >= self.CAUSAL_GROWTH
        short_rise = standardised_rise(values[-self.REFERENCE :], self.SHORT_CREEP_TICKS)
        long_rise = standardised_rise(values, self.RECENT_TICKS)
        if steps_grew and new_count >= self.SHORT_CREEP_TICKS and short_rise > self.SHORT_CREEP_ERRORS:
            count = self.SHORT_CREEP_TICKS
        elif new_count < self.RECENT_TICKS or long_rise <= self.CREEP_ERRORS:
            return None
        elif steps_grew or _held_out_worsened(window):
            count = self.RECENT_TICKS
        else:
            return None
        level = median(values[:-count])
        excess = math.fsum(values[-count:]) / count - level
        why = f"{LOSS} rose from {level:.3g} to a mean of {level + excess:.3g} over {count} ticks"
        onset, _ = losses[-steps_since_rise(values[-2 * self.RECENT_TICKS :], level)]
        remedies = self._likely_remedies(window, onset)
        return _Harm("loss_creeps_up", 0.6, onset, why, excess, level, remedies, confidence=self.CREEP_CONFIDENCE)

    def _likely_remedies(self, window: Window, onset: int) -> tuple[str, ...]:
        """Return the remedies of a risen loss, the most likely first."""
        if gauges.growth_of(window, gauges.LEARNING_RATE) >= self.CAUSAL_GROWTH:
            return (ROLLBACK_AND_CUT, ROLLBACK_AND_SKIP)
        steps_grew = gauges.growth_of(window, gauges.UPDATE_RATIO) >= self.CAUSAL_GROWTH
        if steps_grew and ROLLBACK_ONLY not in self._tried_remedies(window, onset):
            return (ROLLBACK_ONLY,)  # the rate is unchanged, so the moments are damaged; a rollback restores them, too
        return (ROLLBACK_AND_SKIP, ROLLBACK_AND_CUT)

    def _offer(self, window: Window, harm: _Harm) -> Alternatives | None:
        """Offer the remedies of the harm that may help now, those that were not tried first."""
        if gauges.shrink_share(window) > 0.5:
            return None  # the cause is weight decay, not the rate or the data
        tried_remedies = self._tried_remedies(window, harm.onset)
        symptoms = {harm.symptom: harm.severity}
        cosines = window.series(gauges.GRAD_COSINE, after=harm.onset - 1)
        if len(cosines) >= self.JUMP_LENGTH and median(cosines) < -0.2:
            symptoms["gradients_opposed"] = 0.5
        steps_grew = gauges.growth_of(window, gauges.UPDATE_RATIO) >= self.CAUSAL_GROWTH
        may_cut = harm.may_retry or "gradients_opposed" in symptoms or steps_grew
        if gauges.unexplained_jump(window, window.tick - self.MEMORY, self.MEMORY):
            may_cut = False  # no step caused the harm, and further steps repair the weights
        remedies = sorted(harm.remedies, key=lambda remedy: remedy in tried_remedies)
        if not harm.may_retry:
            remedies = [remedy for remedy in remedies if remedy not in tried_remedies]
        if not harm.may_retry and last_rollback_failed(window):
            remedies = [remedy for remedy in remedies if remedy in (ROLLBACK_AND_CUT, SKIP_ONLY)]
        if not may_cut:
            remedies = [remedy for remedy in remedies if remedy != ROLLBACK_AND_CUT]
        return offer([self._create_plan(window, remedy, harm) for remedy in remedies], symptoms)

    def _tried_remedies(self, window: Window, onset: int) -> set[str]:
        """Return the remedies of the last MEMORY ticks, except a single rollback to a damaged snapshot."""
        rollbacks = {r.tick for r in window.applied(ROLLBACK) if r.tick > window.tick - self.MEMORY}
        skips = {r.tick for r in window.applied(SKIP) if r.tick > window.tick - self.MEMORY}
        cuts = {r.tick for r in window.applied(LR_SCALE)}
        remedies = {ROLLBACK_AND_CUT} if cuts & rollbacks else set()
        remedies |= {ROLLBACK_AND_SKIP} if skips & rollbacks else set()
        remedies |= {SKIP_ONLY} if skips - rollbacks else set()
        if len(rollbacks) > 1 or (rollbacks and self._damaged_snapshot_tick(window, onset) is None):
            remedies.add(ROLLBACK_ONLY)
        return remedies

    def _damaged_snapshot_tick(self, window: Window, onset: int) -> int | None:
        """Return the tick of the last rollback's snapshot if harm recurred within RELAPSE_TICKS, otherwise None."""
        rollback = next(reversed(window.applied(ROLLBACK)), None)
        if (
            rollback is None
            or not rollback.tick < onset <= rollback.tick + self.RELAPSE_TICKS
            or not isinstance(rollback.after, float)
        ):
            return None
        return max(
            (o.tick for o in window.observations if o.tick <= rollback.tick and o.step <= rollback.after), default=None
        )

    def _create_plan(self, window: Window, remedy: str, harm: _Harm) -> Plan:
        """Return the plan of a remedy, or an empty plan if the run lacks one of its knobs."""
        damaged_tick = None
        if remedy == ROLLBACK_ONLY and not harm.may_retry:
            damaged_tick = self._damaged_snapshot_tick(window, harm.onset)
        rollback_tick = max(0, harm.onset - self.ROLLBACK_MARGIN if damaged_tick is None else damaged_tick - 1)
        rollback = (ROLLBACK, float(rollback_tick), f"roll back to tick {rollback_tick}")
        changes = [] if remedy == SKIP_ONLY else [rollback]
        if remedy in (ROLLBACK_AND_SKIP, SKIP_ONLY):
            if SKIP not in window.knobs:
                return Plan(remedy, ())
            changes.append((SKIP, float(self.SKIPPED_BATCHES), f"skip {self.SKIPPED_BATCHES} batches"))
        if remedy == ROLLBACK_AND_CUT:
            if LR_SCALE not in window.knobs:
                return Plan(remedy, ())
            knob, growth = window.knobs[LR_SCALE], gauges.growth_of(window, gauges.LEARNING_RATE)
            has_grown = growth >= self.CAUSAL_GROWTH
            lowered = knob.lowered_to(knob.number / (growth if has_grown else self.CUT))
            if lowered is None:
                return Plan(remedy, ())
            reason = f" (the rate has grown {growth:.1f}-fold)" if has_grown else ""
            changes.append((LR_SCALE, lowered, f"{LR_SCALE} {knob.number:.3g} → {lowered:.3g}{reason}"))
        why = f"{harm.why}: {' and '.join(text for _, _, text in changes)}"
        target = objective(window.run)
        gain = harm.excess or DEFAULT_GAIN
        expected_change = round(apply_sign(target, gain), 4)
        is_second = not harm.may_retry and bool(self._tried_remedies(window, harm.onset))
        hit_rate = min(harm.confidence, self.SECOND_CONFIDENCE) if is_second else harm.confidence
        confidence = estimate_confidence(
            window, hit_rate=hit_rate, target=target.name, gain=gain, horizon=self.HORIZON, rollback_tick=rollback_tick
        )
        return Plan.of_changes(
            window, remedy, {name: value for name, value, _ in changes}, confidence=confidence, why=why,
            target=target.name, expected_change=expected_change, horizon=self.HORIZON, reads=harm.reads,
        )  # fmt: skip


def _held_out_worsened(window: Window, since: int = -1) -> bool:
    """Return whether the newest held-out reading is from tick `since` or later and worse than the previous one."""
    last_readings = readings(window, last=2)
    if len(last_readings) < 2:
        return False
    (_, previous), (tick, newest) = last_readings
    return tick >= since and newest < previous

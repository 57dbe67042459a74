"""Raises a learning rate that is too low, cuts one that is too high, and rolls back the damage of a high rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window, change_of
from oven_agents.stats.confidence import estimate_confidence, tentative_confidence
from oven_agents.stats.evaluation_request import held_out_evidence, request_evaluation
from oven_agents.stats.health import objective_health
from oven_agents.stats.level_shift import shift_of_halves, standardised_rise
from oven_agents.stats.lost_progress import (
    DECLINE_TICKS,
    describe_loss_relapse,
    find_loss_above_start,
    last_healthy_tick,
    lost_rewards,
)
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.optimizer_gauges import GRAD_COSINE, LEARNING_RATE, UPDATE_RATIO, decay_share, shrink_share
from oven_agents.stats.policy_shift import is_off_policy, policy_shifted
from oven_agents.stats.reviews import review_change
from oven_agents.stats.robust_statistics import noise, quantile
from oven_agents.stats.rollback_success import failed_scales
from oven_agents.stats.update_to_weight_ratio import (
    HUGE_LENGTH,
    HUGE_STREAK,
    huge_steps,
    max_rate_factor,
    overlong_steps,
)
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

LR_SCALE, ROLLBACK, MIXTURE = "optimizer.lr_scale", "run.rollback", "data.mixture"
EQUAL_GROUPS = "frac_reward_zero_std"
OBJECTIVE_REVIEWER = "divergence"
USUAL_FACTOR = 2.5
"""Factor of a raise, and divisor of a cut without a collapse."""
LARGE_FACTOR = 4.0
"""Factor of a raise if the median cosine exceeds `CLEAR_COSINE`."""


class LearningRate(Agent):
    """Signals: the cosine between each gradient and the running mean of earlier ones. If it is positive, gradients
    agree and the rate is too low. If it is near 0, the rate is about right. If it is negative, gradients are opposed,
    and the rate is too high if a loss also gets worse. This is the sign rule of hypergradient descent over a window
    (Baydin et al. 2018, arXiv 1703.04782). The rate is far too high in two cases. Either steps are long and the loss
    has lost a third of its gain, or the reward has collapsed and the policy itself has changed
    (oven_agents.stats.policy_shift). Training has stalled if the objective did not improve over hundreds of steps and
    gradients do not agree. Two alerts report a rate that is probably far too high (about a hundred times, in our
    tests). Either three steps in a row were together longer than the weights, or a loss stayed far above its value at
    the start of the run.

    Actions: raises a rate that is too low, and cuts a rate that is too high. Also cuts the rate of a stalled run,
    because a lower rate averages out the remaining noise. The damage from a rate that is far too high does not heal by
    itself, so the agent proposes a rollback and a cut as one plan. After a rollback, it never raises the rate above a
    quarter of the value that failed. After any cut, it waits for the effect before it raises the rate again.

    False alarms: on pure noise, opposed gradients are reported in 2 % of runs of 400 ticks, and in 3.7 % by the early
    check. Agreeing gradients do not justify a higher rate in five cases. Weight decay may shrink the weights, or the
    objective may get worse. The model may still be leaving its random initialisation. The agreement may fade by itself,
    as it does at a good rate. Or gradients did not agree earlier, at the same rate or a lower one.

    Limits: while the user's own schedule changes the rate, the agent only raises alerts. In a run without the cosine
    (sharded gradients, an imported log), it only detects a collapse. A rate that is ten times too high raises no alert,
    because some tuned runs look the same at first (docs/experiments.md).
    """

    reads = (GRAD_COSINE,)
    moves = (LR_SCALE, ROLLBACK, EVALUATE)
    options = dict.fromkeys(
        (
            "min_cosine", "min_quartile", "clear_cosine", "max_solved_share", "min_reward", "min_lean_cosine",
            "late_progress", "max_repeated_share", "max_decay_share", "initial_progress", "min_remaining_share",
            "schedule_decay", "min_lost_gain", "overlong_confidence", "collapse_confidence", "aligned_confidence",
            "opposed_confidence", "min_resolution",
        ),
        SHARE_BOUNDS,
    )  # fmt: skip

    WINDOW = 8
    """Number of newest ticks whose cosines show a low rate, enough to reveal one that is 10 times too low."""
    MIN_COSINES = 6
    """Minimum number of cosines within WINDOW, so that no single value decides."""
    SETTLING_TICKS = 2
    """Number of ticks to ignore after a rate change, and to roll back before the first long step."""
    MIN_COSINE = 0.40
    """Median cosine above which the rate is too low. At the right rate, the cosine is at most 0.21."""
    MIN_QUARTILE = 0.30
    """Minimum lower quartile of the cosines, so that a few high values are not enough."""
    CLEAR_COSINE = 0.50
    """Median cosine above which the rate is raised by a factor of 4 instead of 2.5."""
    MAX_OPPOSED_COSINE = -0.05
    """Maximum mean cosine of each half of the window for opposed gradients."""
    MIN_LONG_COSINES = 20
    """Minimum number of cosines for opposed gradients or slight agreement."""
    LONG_WINDOW = 60
    """Maximum number of ticks to read for opposed gradients. More would describe an earlier state of the model."""
    SIGMAS = 3.5
    """Number of standard errors that a mean cosine, or a worsening loss, must exceed. Noise often exceeds two."""
    EARLY_COUNTS = range(12, 15)
    """Numbers of cosines at which the early check for opposed gradients takes place."""
    EARLY_SIGMAS = 2.5
    """Number of standard errors that the mean cosine must exceed in the early check."""
    MAX_SOLVED_SHARE = 0.6
    """Median share of groups with equal rewards, 0 to 1, above which the cosines are ignored. The gradient is then only
    the noise of the few other groups. The value was not tuned."""
    MIN_REWARD = 0.15
    """Minimum best level of a reward for a collapse. Half of a lower level is within the noise."""
    MIN_LEAN_COSINE = 0.04
    """Mean cosine above which gradients agree slightly ("lean"). At the right rate, it is lower after ten steps."""
    LEAN_WINDOW = 40
    """Number of newest ticks to read for slight agreement, which small batches hide over a few ticks."""
    LEAN_START = 60
    """Number of ticks before the first check for slight agreement, because gradients always agree at first."""
    ON_COURSE_GAIN = 2.0
    """Expected gain of the reward over the whole run, in standard deviations within a group, above which slight
    agreement is ignored. The gradients then agree because the policy learns."""
    LATE_PROGRESS = 0.75
    """Progress of the run, 0 to 1, after which slight agreement is ignored. A late rate is usually low on purpose."""
    MAX_REPEATED_SHARE = 0.2
    """Mean share of repeated rows, 0 to 1, above which slight agreement is ignored: equal rows have equal gradients."""
    MAX_DECAY_SHARE = 0.3
    """Share of weight decay in each step's length, 0 to 1, above which the decay explains the agreement."""
    CUT = 8.0
    """Divisor of the rate after a collapse. It undid 90 % of the harm of a rate that was 25 times too high."""
    REPAIR_TICKS = 20
    """Number of ticks after a cut during which the rate is not raised."""
    INITIAL_TICKS = 40
    """Number of ticks after which random initialisation no longer explains high agreement."""
    INITIAL_PROGRESS = 0.05
    """Progress of the run, 0 to 1, until which weights count as freshly initialised, even after INITIAL_TICKS."""
    FADE_WINDOW = 30
    """Number of newest ticks whose mean cosine is compared with that of as many ticks before them."""
    MIN_REMAINING_SHARE = 0.98
    """Share of the earlier mean cosine, 0 to 1, below which the agreement fades. It does so at good rates."""
    SCHEDULE_DECAY = 0.6
    """Share of the highest rate, 0 to 1, below which the user's schedule has lowered the rate on purpose."""
    LOSS_TICKS = 12
    """Number of ticks for which a loss must have stayed high, or twice as many if the loss never fell before."""
    MIN_LOST_GAIN = 1 / 3
    """Minimum share of its gain, 0 to 1, that the loss must have lost. Long steps alone are not enough."""
    OVERLONG_CONFIDENCE = 0.85
    """Confidence for steps that are too long: the highest that measured outcomes support for any agent."""
    COLLAPSE_CONFIDENCE = 0.75
    """Confidence for a collapsed reward, set from measured outcomes. The reward itself may be wrong."""
    ALIGNED_CONFIDENCE = 0.85
    """Confidence for agreeing gradients before noise is taken into account, set from measured outcomes."""
    OPPOSED_CONFIDENCE = 0.8
    """Confidence for opposed gradients before noise is taken into account, set from measured outcomes."""
    STALL_HALF = 200
    """Number of ticks in each half of the window for a stall, enough to detect a change by 1 % of the objective."""
    STALL_INTERVAL = 20
    """Number of ticks between two checks for a stall. More frequent checks would give the same result."""
    MIN_RESOLUTION = 0.01
    """Share of the objective, 0 to 1, that must be measurable for a stall. It is also the forecast gain of a cut."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        if not published & {"reward", "loss"}:
            return "the run publishes neither reward nor loss"
        if "reward" not in published and GRAD_COSINE not in published:
            return f"the run publishes no {GRAD_COSINE}, and the loss alone does not show whether the rate is right"
        return None

    def alerts(self, window: Window) -> Sequence[Alert]:
        """Return the two symptoms of a rate that is far too high in a run with a loss."""
        if objective(window.run).name != "loss":
            return []
        alerts = []
        rate = "".join(f" ({value:.3g})" for value in window.series(LEARNING_RATE, last=1))
        remedy = f"The learning rate{rate} is probably far too high: try a tenth of it"
        if steps := huge_steps(window):
            tick, length = steps
            why = (
                f"{HUGE_STREAK} steps until tick {tick} moved the weights by {length:.0%} of their norm on average, "
                f"which may erase what they had learnt. {remedy}, unless the weights started near 0"
            )
            alerts.append(window.alert("update_ratio_high", UPDATE_RATIO, value=length, expected=HUGE_LENGTH, why=why))
        if loss := find_loss_above_start(window):
            why = f"the loss is {loss.current:.3g}, worse than {loss.start:.3g} at the start. {remedy}"
            alerts.append(window.alert("loss_creeps_up", "loss", value=loss.current, expected=loss.start, why=why))
        return alerts

    def vote(self, window: Window) -> Vote | Plan | None:
        return (
            self._treat_collapse(window)
            or self._treat_long_steps(window)
            or self._raise_low_rate(window)
            or self._cut_opposed(window)
            or self._cut_stalled(window)
        )

    def can_review(self, run: RunStarted) -> bool:
        return any(metric.name == objective(run).name for metric in run.metrics)

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        """Review the objective if the agent that otherwise reviews it proposes the change or is not in this run. Two
        votes on one measurement would give it twice the weight."""
        if ballot.opened_by != OBJECTIVE_REVIEWER and OBJECTIVE_REVIEWER in ballot.eligible:
            return None
        return review_change(ballot, window, objective_health)

    def _treat_collapse(self, window: Window) -> Plan | Vote | None:
        """Propose a rollback and a cut after a collapse of the reward, or first request a held-out reading."""
        since = window.last_change_tick(LR_SCALE, ROLLBACK)
        changed_at = window.last_change_tick(LR_SCALE)
        if changed_at >= 0 and window.tick <= changed_at + window.run.rules.cooldown_ticks:
            return None  # the cut would be rejected, and after a rollback alone the reward would collapse again
        if objective(window.run).name != "reward":
            return None
        # Harder data lower the mean without a collapse. So after a change of the mixture, compare the reward by level.
        by_level = window.last_change_tick(MIXTURE) > since
        collapsed = lost_rewards(window, since, min_level=self.MIN_REWARD, by_level=by_level)
        if not collapsed or is_off_policy(window):
            return None
        name, best, current, low_ticks = collapsed[0]
        healthy_tick = last_healthy_tick(window, since)
        onset = healthy_tick + DECLINE_TICKS + 1
        evidence_state = held_out_evidence(window, onset).state
        if evidence_state == "ask":
            return request_evaluation(window, f"{name} fell from {best:.2f} to {current:.2f}")
        if evidence_state == "wait" or not policy_shifted(window, onset):
            return None
        scale = window.knobs[LR_SCALE].number
        lowered = window.knobs[LR_SCALE].lowered_to(scale / self.CUT)
        if lowered is None:
            return None
        rollback_tick = max(since, healthy_tick, 0)
        why = (
            f"{name} fell from {best:.2f} to {current:.2f} and has stayed there for {low_ticks} ticks at scale "
            f"{scale:.3g}: roll back to tick {rollback_tick} and {LR_SCALE} {scale:.3g} → {lowered:.3g}"
        )
        # Prefer a held-out metric, because the judges may have changed the meaning of the reward.
        target = held_out_metric(window.run) or objective(window.run)
        changes = {LR_SCALE: lowered} | ({ROLLBACK: rollback_tick} if ROLLBACK in window.knobs else {})
        gain = best - current if target.name == "reward" else 0.05
        return Plan.of_changes(
            window, "rollback_and_cut", changes, confidence=self.COLLAPSE_CONFIDENCE, why=why, target=target.name,
            expected_change=apply_sign(target, gain), horizon=20, evidence=("symptom:policy_collapse",),
            reads=("reward",),
        )  # fmt: skip

    def _treat_long_steps(self, window: Window) -> Plan | None:
        """Propose a rollback and a cut if steps are long and the loss has lost its gain. A cut alone does not repair
        damaged weights. Length alone proves nothing, because Adam's first steps without a warm-up are as long."""
        target = objective(window.run)
        steps = overlong_steps(window) if target.name == "loss" else None
        if steps is None or ROLLBACK not in window.knobs:
            return None
        since = window.last_change_tick(LR_SCALE, ROLLBACK)
        relapse = describe_loss_relapse(window, since, share=self.MIN_LOST_GAIN, ticks=self.LOSS_TICKS)
        if relapse is None:
            return None
        knob = window.knobs[LR_SCALE]
        lowered = knob.lowered_to(knob.number / steps.excess)
        if lowered is None:
            return None  # without the cut, the rollback would only lead to the same state again
        rollback_tick = max(0, steps.onset - self.SETTLING_TICKS)
        why = (
            f"{relapse}, and a step moved the weights by {steps.length:.1%} of their norm: roll back to tick "
            f"{rollback_tick}, before the long steps, and {LR_SCALE} {knob.number:.3g} → {lowered:.3g}"
        )
        return Plan.of_changes(
            window, "rollback_and_cut", {LR_SCALE: lowered, ROLLBACK: float(rollback_tick)},
            confidence=self.OVERLONG_CONFIDENCE, why=why, target=target.name, expected_change=apply_sign(target, 0.05),
            horizon=60, evidence=("symptom:update_ratio_high",), reads=(UPDATE_RATIO, "loss"),
        )  # fmt: skip

    def _raise_low_rate(self, window: Window) -> Vote | None:
        """Propose a raise if gradients agree, unless the agreement has another cause than a low rate."""
        agreement = self._check_agreement(window)
        reason_and_factor = agreement or self._check_slight_agreement(window)
        tolerates_fading = bool(agreement) and objective(window.run).name == "reward"
        if (
            not reason_and_factor
            or self._may_be_near_initialisation(window)
            or self._disagreed_earlier(window)
            or self._awaits_effect_of_cut(window)
            or max(shrink_share(window), decay_share(window)) > self.MAX_DECAY_SHARE
            or self._objective_worsens(window)
            or self._schedule_lowered_rate(window)
            or (not tolerates_fading and self._agreement_fades(window))
        ):
            return None
        why, factor = reason_and_factor
        knob = window.knobs[LR_SCALE]
        target = objective(window.run)
        max_after_failure = min((scale / 4 for scale in failed_scales(window)), default=math.inf)
        max_by_length = knob.number * max_rate_factor(window) if target.name == "loss" else math.inf
        raised = knob.raised_to(min(knob.number * factor, max_after_failure, max_by_length))
        if raised is None:
            return None
        confidence = estimate_confidence(
            window, hit_rate=self.ALIGNED_CONFIDENCE, target=target.name, gain=0.03, horizon=40
        )
        return _propose_scale(window, raised, why, confidence, gain=0.03, horizon=40, symptom="gradients_aligned")

    def _may_be_near_initialisation(self, window: Window) -> bool:
        """Return whether the model may still be leaving its initialisation, where gradients agree at any rate."""
        if objective(window.run).name != "loss" or window.applied(LR_SCALE):
            return False
        cosine_count = len(window.surviving_series(GRAD_COSINE, last=self.INITIAL_TICKS))
        is_early = window.progress < self.INITIAL_PROGRESS and window.run.horizon.is_known
        return cosine_count < self.INITIAL_TICKS or is_early

    def _agreement_fades(self, window: Window) -> bool:
        """Return whether the agreement fades, as it does by itself at a good rate, or too few cosines were measured."""
        shift = shift_of_halves(self._recent_cosines(window, 2 * self.FADE_WINDOW))
        return len(shift.before) < self.WINDOW or fmean(shift.now) < self.MIN_REMAINING_SHARE * fmean(shift.before)

    def _schedule_lowered_rate(self, window: Window) -> bool:
        """Return whether the user's schedule has lowered the rate of a loss. A policy's rate seldom has a schedule."""
        rates = window.series(LEARNING_RATE, after=window.last_change_tick(LR_SCALE, ROLLBACK))
        return objective(window.run).name == "loss" and bool(rates) and rates[-1] < self.SCHEDULE_DECAY * max(rates)

    def _disagreed_earlier(self, window: Window) -> bool:
        """Return whether gradients did not agree for 2 · WINDOW earlier ticks at the same rate or a lower one."""
        rates = dict(window.surviving_series(LEARNING_RATE))
        newest_rate = next(reversed(rates.values()), math.inf)
        cosines = window.surviving_series(GRAD_COSINE)
        comparable = [cosine for tick, cosine in cosines if rates.get(tick, math.inf) < 1.1 * newest_rate]
        length = 2 * self.WINDOW
        spans = (comparable[start : start + length] for start in range(0, len(comparable), self.WINDOW))
        return any(len(span) == length and median(span) < self.MIN_LEAN_COSINE for span in spans)

    def _awaits_effect_of_cut(self, window: Window) -> bool:
        """Return whether the last cut is too recent to show its effect."""
        cut_ticks = [receipt.tick for receipt in window.applied(LR_SCALE) if change_of(receipt) < 0]
        return bool(cut_ticks) and window.tick < cut_ticks[-1] + self.REPAIR_TICKS

    def _objective_worsens(self, window: Window) -> bool:
        """Return whether the objective gets worse, for example because of a wrong loss term."""
        target = objective(window.run)
        losses = [-apply_sign(target, value) for _, value in window.surviving_series(target.name, last=3 * self.WINDOW)]
        return standardised_rise(losses, self.WINDOW // 2) > 2

    def _check_agreement(self, window: Window) -> tuple[str, float] | None:
        """Return the reason and the factor of a raise if gradients agree, or None. A few clear steps are enough."""
        cosines = self._recent_cosines(window, self.WINDOW)
        if len(cosines) < self.MIN_COSINES or _schedule_changed_rate(window, self.WINDOW):
            return None
        middle, lower_quartile = median(cosines), quantile(cosines, 0.25)
        if middle < self.MIN_COSINE or lower_quartile < self.MIN_QUARTILE:
            return None
        why = (
            f"gradients agree with their running mean (cosine {middle:.2f}, lower quartile {lower_quartile:.2f} over "
            f"{len(cosines)} ticks; near 0 at the right rate)"
        )
        return why, LARGE_FACTOR if middle >= self.CLEAR_COSINE else USUAL_FACTOR

    def _check_slight_agreement(self, window: Window) -> tuple[str, float] | None:
        """Return the reason and the factor of a raise if gradients agree slightly in the middle of the run, or None."""
        cosines = self._recent_cosines(window, self.LEAN_WINDOW)
        if len(cosines) < self.MIN_LONG_COSINES or window.progress > self.LATE_PROGRESS:
            return None
        shift = shift_of_halves(cosines)
        if min(fmean(shift.before), fmean(shift.now)) < self.MIN_LEAN_COSINE:
            return None
        if len(window.observations) < self.LEAN_START or _schedule_changed_rate(window, self.LEAN_WINDOW):
            return None
        if fmean(window.series("data/repeated", last=self.MIN_LONG_COSINES) or [0.0]) > self.MAX_REPEATED_SHARE:
            return None  # the same rows have the same gradients
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean - self.SIGMAS * error < self.MIN_LEAN_COSINE or self._is_on_course(window):
            return None
        why = (
            f"gradients agree slightly with their running mean (cosine {mean:.2f} ± {error:.2f} over {len(cosines)} "
            "ticks; at most 0 at the right rate)"
        )
        return why, USUAL_FACTOR

    def _is_on_course(self, window: Window) -> bool:
        """Return whether the reward, at its current pace, will gain more than ON_COURSE_GAIN over the whole run."""
        group_deviations = window.series("reward_std", last=self.LEAN_WINDOW)
        rewards = [reward for _, reward in window.surviving_series("reward")]
        if not group_deviations or len(rewards) < self.LEAN_WINDOW or not window.run.horizon.is_known:
            return False
        recent = shift_of_halves(rewards[-self.LEAN_WINDOW :])
        pace = recent.mean_difference / len(recent.now)  # per tick
        gain = fmean(recent.now) - fmean(rewards[: len(recent.now)])
        remaining_ticks = window.tick * (1 / window.progress - 1)
        return gain + pace * remaining_ticks > self.ON_COURSE_GAIN * median(group_deviations)

    def _cut_opposed(self, window: Window) -> Vote | None:
        """Propose a cut if gradients are opposed and a loss gets worse."""
        cosines = self._recent_cosines(window, self.LONG_WINDOW)
        is_early = len(cosines) in self.EARLY_COUNTS
        if not (is_early or len(cosines) >= self.MIN_LONG_COSINES) or _schedule_changed_rate(window, self.LONG_WINDOW):
            return None
        shift = shift_of_halves(cosines)
        if max(fmean(shift.before), fmean(shift.now)) > self.MAX_OPPOSED_COSINE:
            return None
        sigmas = self.EARLY_SIGMAS if is_early else self.SIGMAS
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean + sigmas * error > 0 or self._is_mostly_solved(window):
            return None
        if objective(window.run).name == "loss" and not self._loss_worsens(window, len(cosines)):
            return None  # at a good rate, steps also overshoot in a few directions
        lowered = _lowered_scale(window)
        if lowered is None:
            return None
        why = (
            f"successive gradients cancel each other (cosine with their running mean {mean:.2f} ± {error:.2f} over "
            f"{len(cosines)} ticks)"
        )
        confidence = estimate_confidence(
            window, hit_rate=self.OPPOSED_CONFIDENCE, target=objective(window.run).name, gain=0.05, horizon=30
        )
        return _propose_scale(window, lowered, why, confidence, gain=0.05, horizon=30, symptom="gradients_opposed")

    def _loss_worsens(self, window: Window, ticks: int) -> bool:
        """Return whether the loss got worse, beyond its noise, between the two halves of the last `ticks` ticks."""
        target = objective(window.run)
        values = [apply_sign(target, value) for value in window.series(target.name, last=ticks) if math.isfinite(value)]
        shift, half = shift_of_halves(values), len(values) // 2
        if half < 2:
            return False
        standard_error = max(stdev(shift.before), stdev(shift.now)) * math.sqrt(2 / half)
        return shift.mean_difference < -self.SIGMAS * standard_error

    def _cut_stalled(self, window: Window) -> Vote | None:
        """Propose a cut if the run has stalled. This is a rule of thumb (`tentative_confidence`)."""
        if window.tick % self.STALL_INTERVAL:
            return None
        target = objective(window.run)
        since = window.last_change_tick()
        values = window.series(target.name, after=since, last=2 * self.STALL_HALF)
        if len(values) < 2 * self.STALL_HALF or _schedule_changed_rate(window, 2 * self.STALL_HALF):
            return None
        old, new = fmean(values[: self.STALL_HALF]), fmean(values[self.STALL_HALF :])
        error = noise(values) * math.sqrt(2 / self.STALL_HALF)
        min_resolution = self.MIN_RESOLUTION * abs(old)
        is_flat = apply_sign(target, new - old) < 2 * error and 2 * error < min_resolution
        cosines = window.series(GRAD_COSINE, after=since, last=self.STALL_HALF)
        if not is_flat or self._is_mostly_solved(window) or len(cosines) < self.STALL_HALF or fmean(cosines) > 0:
            return None
        lowered = _lowered_scale(window)
        if lowered is None:
            return None
        why = (
            f"{target.name} did not improve over {2 * self.STALL_HALF} ticks ({old:.4g} → {new:.4g} ± {error:.2g}), "
            f"and gradients do not agree (cosine {fmean(cosines):.2f})"
        )
        confidence, symptom = tentative_confidence(window.run), f"{target.name}_plateau"
        return _propose_scale(window, lowered, why, confidence, gain=min_resolution, horizon=60, symptom=symptom)

    def _is_mostly_solved(self, window: Window) -> bool:
        """Return whether most groups have equal rewards, so that the gradient is the noise of the few others."""
        return median(window.series(EQUAL_GROUPS, last=self.LONG_WINDOW) or [0.0]) > self.MAX_SOLVED_SHARE

    def _recent_cosines(self, window: Window, last: int) -> list[float]:
        """Return the cosines since the last rate change, without the ticks in which the running mean still adapts."""
        since = window.last_change_tick(LR_SCALE, ROLLBACK)
        cosines = window.series(GRAD_COSINE, after=since + self.SETTLING_TICKS if since >= 0 else -1, last=last)
        return [cosine for cosine in cosines if math.isfinite(cosine)]


def _lowered_scale(window: Window) -> float | None:
    """Return the scale divided by USUAL_FACTOR, or None if the run lacks the knob or its lower bound allows no cut."""
    knob = window.knobs.get(LR_SCALE)
    return knob.lowered_to(knob.number / USUAL_FACTOR) if knob else None


def _propose_scale(
    window: Window, scale: float, why: str, confidence: float, *, gain: float, horizon: int, symptom: str
) -> Vote:
    """Propose a scale. `gain` is the forecast gain of the objective."""
    target = objective(window.run)
    why += f": {LR_SCALE} {window.knobs[LR_SCALE].number:.3g} → {scale:.3g}"
    return window.propose(
        LR_SCALE, scale, confidence=confidence, why=why, target=target.name,
        expected_change=apply_sign(target, gain), horizon=horizon, evidence=(f"symptom:{symptom}",),
    )  # fmt: skip


def _schedule_changed_rate(window: Window, ticks: int) -> bool:
    """Return whether a schedule, such as warm-up or decay, changed the rate within the last `ticks` ticks."""
    since = window.last_change_tick(LR_SCALE, ROLLBACK)
    rates = window.series(LEARNING_RATE, after=since, last=ticks)
    return bool(rates) and max(rates) > 1.02 * min(rates)

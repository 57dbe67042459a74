"""Tunes the learning rate: raises it when it is too low, cuts it when it is too high, and rolls back what it broke."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window, change_of
from oven_agents.stats.confidence import confidence, tentative_confidence
from oven_agents.stats.evaluation_request import held_out_evidence, request_evaluation
from oven_agents.stats.level_shift import rise, shift_of_halves
from oven_agents.stats.lost_progress import DECLINE_TICKS, describe_loss_relapse, last_healthy_tick, lost_rewards
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.optimizer_gauges import RATE, decay_share, shrink_share
from oven_agents.stats.policy_shift import is_off_policy, policy_shifted
from oven_agents.stats.robust_statistics import noise, quantile
from oven_agents.stats.rollback_success import failed_scales
from oven_agents.stats.update_to_weight_ratio import max_rate_factor, overlong_steps
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import RunStarted, Vote

SCALE, ROLLBACK, MIXTURE = "optimizer.lr_scale", "run.rollback", "data.mixture"
ALIGNMENT = "optim/grad_momentum_cos"


class LearningRate(Agent):
    """Signals: the rate is too low if each gradient points in the direction of the running mean of earlier gradients.
    Near the right rate, successive gradients are unrelated. This is the sign rule of hypergradient descent (Baydin et
    al. 2018, arXiv 1703.04782) over a window. The rate is too high if successive gradients cancel each other while a
    loss gets worse. It is far too high in two cases. Either steps are long and the loss has lost a third of its gain,
    or the reward has collapsed and the policy itself has changed (oven_agents.stats.policy_shift). Training has stalled
    if the objective did not improve over hundreds of steps and successive gradients do not agree.

    Actions: raises a rate that is too low. Cuts a rate that is too high or stalled, because a lower rate averages out
    the remaining noise. The damage from a rate that is far too high does not heal by itself, so the agent proposes a
    rollback and a cut as one plan. After a rollback, the rate stays below a quarter of the value that failed. The agent
    does not raise it until a cut has shown its effect.

    False alarms: on pure noise, opposed gradients are reported in 2 % of runs of 400 ticks, and in 3.7 % by the early
    check. Agreeing gradients do not justify a higher rate in five cases: weight decay shrinks the weights, the
    objective gets worse, the model is still leaving its random initialisation, the agreement fades by itself as it does
    at a good rate, or gradients did not agree earlier at the same rate or a lower one.

    Limits: the agent is silent while the user's own schedule changes the rate. Without the cosine (sharded gradients,
    an imported run) it only detects a collapse.
    """

    moves = (SCALE, ROLLBACK, EVALUATE)
    speciality = (SCALE, ROLLBACK, EVALUATE)
    options = dict.fromkeys(
        (
            "min_cosine", "min_quartile", "clear_cosine", "max_solved_share", "min_reward", "min_lean_cosine",
            "late_progress", "max_repeated_share", "max_decay_share", "initial_progress", "min_remaining_share",
            "schedule_decay", "min_lost_gain", "overlong_confidence", "collapse_confidence", "aligned_confidence",
            "opposed_confidence", "min_resolution",
        ),
        SHARE,
    )  # fmt: skip

    WINDOW = 8
    """Newest ticks whose cosines show a low rate. Eight steps reveal a rate that is 10 to 30 times too low."""
    MIN_COSINES = 6
    """Minimum number of cosines within WINDOW. With fewer, the median and the quartile are single values."""
    SETTLING_TICKS = 2
    """Ticks to ignore after a rate change while the mean adapts, and to roll back before the first long step."""
    MIN_COSINE = 0.40
    """Median cosine above which the rate is too low. Over the first 20 steps it was 0.50 to 0.57 at a tenth of the
    right rate and below, and 0.04 to 0.21 at the right rate."""
    MIN_QUARTILE = 0.30
    """Minimum lower quartile of the cosines, so that a few high values are not enough."""
    CLEAR_COSINE = 0.50
    """Median cosine above which the factor is 4 instead of 2.5: 0.54 to 0.57 at a thirtieth of the right rate."""
    MAX_OPPOSED_COSINE = -0.05
    """Maximum mean cosine of either half of the window at which gradients are opposed. At three times the right rate it
    was −0.09 to −0.10. With −0.08 here, one start of `bench starts` ended at 0.241 instead of 0.573."""
    MIN_LONG_COSINES = 20
    """Minimum cosines for opposition or slight agreement. With SIGMAS, 2 % of 400 ticks of noise give a false alarm."""
    LONG_WINDOW = 60
    """Maximum number of ticks to read for opposed gradients. More would describe an earlier state of the model."""
    SIGMAS = 3.5
    """Standard errors that a mean cosine, or a worsening loss, must exceed. Noise often crosses two of them."""
    EARLY_COUNTS = range(12, 15)
    """Numbers of cosines for the early check. It improved two starts from 0.914 and 0.903 to 0.940 and 0.932."""
    EARLY_SIGMAS = 2.5
    """Standard errors for the early check. It gives false alarms in 3.7 % of runs of pure noise."""
    MAX_SOLVED_SHARE = 0.6
    """Median share of groups with equal rewards, 0 to 1, above which the gradient is ignored, because it is the noise
    of the few other groups. The value was not tuned. A lower one silences the agent more often near the ceiling."""
    MIN_REWARD = 0.15
    """Minimum best level of a reward for a visible collapse. Half of almost nothing is within the noise."""
    MIN_LEAN_COSINE = 0.04
    """Mean cosine above which gradients agree slightly. At the right rate it was −0.07 to 0.04 after ten steps."""
    LEAN_WINDOW = 40
    """Ticks to read for slight agreement. Small batches hide it over a few ticks."""
    LEAN_START = 60
    """Ticks before the first check for slight agreement. At first, all gradients lead away from the initialisation."""
    ON_COURSE_GAIN = 2.0
    """Expected gain of the reward over the whole run, in standard deviations within a group, above which slight
    agreement is ignored: the gradients agree because the policy learns. On development seeds of the GRPO script in
    tests/foreign, it was about 1 at a tenth of the right rate, and 5 or more at the right rate."""
    LATE_PROGRESS = 0.75
    """Progress of the run, 0 to 1, after which slight agreement is ignored. A late rate is usually low on purpose."""
    MAX_REPEATED_SHARE = 0.2
    """Mean share of repeated rows, 0 to 1, above which slight agreement is ignored: equal rows have equal gradients."""
    MAX_DECAY_SHARE = 0.3
    """Share of each step's length, 0 to 1, above which decay explains the agreement. A tuned run had 0.012."""
    CUT = 8.0
    """Divisor of the rate after a collapse. It undid 90 % of the harm of a rate 25 times too high."""
    REPAIR_TICKS = 20
    """Ticks after a cut during which the rate is not raised. With 40, `wide_encoding` fell from 0.48 to 0.15."""
    INITIAL_TICKS = 40
    """Ticks after which high gradient agreement can no longer be explained by random initialisation. On models of 30 k
    to 1 M parameters the cosine fell below MIN_COSINE within 10 to 30 ticks."""
    INITIAL_PROGRESS = 0.05
    """Share of the run, 0 to 1, with freshly initialised weights. Large models need more than INITIAL_TICKS."""
    FADE_WINDOW = 30
    """Newest ticks whose mean cosine is compared with that of as many ticks before, to see whether agreement fades."""
    MIN_REMAINING_SHARE = 0.98
    """Minimum share of the earlier mean cosine that must remain. On development seeds with gradients that still agreed,
    the share was at most 0.97 at good rates, and higher at a tenth of each of these rates."""
    SCHEDULE_DECAY = 0.6
    """Share of the highest rate, 0 to 1, below which the user's schedule has lowered it on purpose."""
    LOSS_TICKS = 12
    """Ticks for which a loss must stay risen (twice as many if it never fell). Some recover by step 25."""
    MIN_LOST_GAIN = 1 / 3
    """Minimum share of its gain, 0 to 1, that the loss must have lost. Long steps alone are not enough."""
    OVERLONG_CONFIDENCE = 0.85
    """Confidence for steps that are too long: the highest that measured outcomes support for any agent."""
    COLLAPSE_CONFIDENCE = 0.75
    """Confidence for a collapsed reward, also from outcomes. The reward itself may be wrong."""
    ALIGNED_CONFIDENCE = 0.85
    """Confidence for agreeing gradients, without noise: 98 % came true in GRPO, and 65 % in pretraining."""
    OPPOSED_CONFIDENCE = 0.8
    """Confidence for opposed gradients, without noise, also from outcomes. A vote on a stall needs a second agent."""
    STALL_HALF = 200
    """Ticks in each half of the window for a stall, enough to detect a change of one hundredth of the objective."""
    STALL_INTERVAL = 20
    """Ticks between two checks for a stall. More frequent checks would give the same result."""
    MIN_RESOLUTION = 0.01
    """Minimum measurable difference between the halves, and forecast gain, as a share of the objective, 0 to 1."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        if not published & {"reward", "loss"}:
            return "the run publishes neither reward nor loss"
        if "reward" not in published and ALIGNMENT not in published:
            return f"the run publishes no {ALIGNMENT}, and the loss alone does not show whether the rate is right"
        return None

    def vote(self, window: Window) -> Vote | Sequence[Vote] | Plan | None:
        return (
            self._treat_collapse(window)
            or self._treat_long_steps(window)
            or self._raise_low_rate(window)
            or self._cut_opposed(window)
            or self._cut_stalled(window)
        )

    def _treat_long_steps(self, window: Window) -> Plan | None:
        """Propose a rollback and a cut if steps are long and the loss has lost its gain. A cut alone does not repair
        damaged weights. Length alone proves nothing: Adam's first steps without a warm-up are as long."""
        target = objective(window.run)
        steps = overlong_steps(window) if target.name == "loss" else None
        if steps is None or ROLLBACK not in window.knobs:
            return None
        since = window.last_change_tick(SCALE, ROLLBACK)
        lost = describe_loss_relapse(window, since, share=self.MIN_LOST_GAIN, ticks=self.LOSS_TICKS)
        if lost is None:
            return None
        knob = window.knobs[SCALE]
        lowered = knob.bounded(knob.number / steps.excess)
        if lowered > knob.number / 1.2:
            return None  # without the cut, the rollback would only lead to the same state again
        rollback_tick = max(0, steps.onset - self.SETTLING_TICKS)
        why = (
            f"{lost}, and a step moved the weights by {steps.length:.1%} of their norm: roll back to tick "
            f"{rollback_tick}, before the long steps, and {SCALE} {knob.number:.3g} → {lowered:.3g}"
        )
        return Plan.of_changes(
            window, "rollback_and_cut", {SCALE: lowered, ROLLBACK: float(rollback_tick)},
            confidence=self.OVERLONG_CONFIDENCE, why=why, target=target.name, expected_change=apply_sign(target, 0.05),
            horizon=60, evidence=("symptom:update_ratio_high",),
        )  # fmt: skip

    def _loss_worsens(self, window: Window, ticks: int) -> bool:
        """Return whether the loss got worse, beyond its noise, between the two halves of the last `ticks` ticks."""
        target = objective(window.run)
        values = [apply_sign(target, v) for v in window.series(target.name, last=ticks) if math.isfinite(v)]
        shift, half = shift_of_halves(values), len(values) // 2
        if half < 2:
            return False
        error = max(stdev(shift.before), stdev(shift.now)) * math.sqrt(2 / half)
        return shift.mean_difference < -self.SIGMAS * error

    def _treat_collapse(self, window: Window) -> Plan | Vote | None:
        """Propose a rollback and a cut after a collapse of the reward, or first request a held-out reading."""
        since = window.last_change_tick(SCALE, ROLLBACK)
        changed_at = window.last_change_tick(SCALE)
        if changed_at >= 0 and window.tick <= changed_at + window.run.rules.cooldown_ticks:
            return None  # the cut would be rejected, and after a rollback alone the reward would collapse again
        if objective(window.run).name != "reward":
            return None
        # After a change of the mixture, read the reward by level: harder data lower the mean without a collapse.
        by_level = window.last_change_tick(MIXTURE) > since
        lost = lost_rewards(window, since, min_level=self.MIN_REWARD, by_level=by_level)
        if not lost or is_off_policy(window):
            return None
        healthy_tick = last_healthy_tick(window, since)
        onset = healthy_tick + DECLINE_TICKS + 1
        evidence = held_out_evidence(window, onset).state
        if evidence == "ask":
            return request_evaluation(window, f"{lost[0].name} fell from {lost[0].best:.2f} to {lost[0].current:.2f}")
        if evidence == "wait" or not policy_shifted(window, onset):
            return None
        scale = window.knobs[SCALE].number
        cut = window.knobs[SCALE].bounded(scale / self.CUT)
        if cut > scale / 1.2:
            return None
        rollback_tick = max(since, healthy_tick, 0)
        name, best, current, low_ticks = lost[0]
        why = (
            f"{name} fell from {best:.2f} to {current:.2f} and has stayed there for {low_ticks} ticks at scale "
            f"{scale:.3g}: roll back to tick {rollback_tick} and {SCALE} {scale:.3g} → {cut:.3g}"
        )
        # The meaning of the reward itself may have changed.
        target = held_out_metric(window.run) or objective(window.run)
        changes = {SCALE: cut} | ({ROLLBACK: rollback_tick} if ROLLBACK in window.knobs else {})
        gain = best - current if target.name == "reward" else 0.05
        return Plan.of_changes(
            window, "rollback_and_cut", changes, confidence=self.COLLAPSE_CONFIDENCE, why=why, target=target.name,
            expected_change=apply_sign(target, gain), horizon=20, evidence=("symptom:policy_collapse",),
        )  # fmt: skip

    def _raise_low_rate(self, window: Window) -> list[Vote]:
        aligned = self._check_agreement(window)
        raise_reason = aligned or self._check_slight_agreement(window)
        if (
            not raise_reason
            or self._may_leave_initialisation(window)
            or self._disagreed_earlier(window)
            or self._awaits_cut(window)
            or max(shrink_share(window), decay_share(window)) > self.MAX_DECAY_SHARE
            or self._objective_worsens(window)
            or self._schedule_lowered_rate(window)
            or (self._agreement_fades(window) and not (aligned and objective(window.run).name == "reward"))
        ):
            return []
        why, factor = raise_reason
        knob = window.knobs[SCALE]
        ceiling = min((scale / 4 for scale in failed_scales(window)), default=math.inf)
        target = objective(window.run)
        length_limit = knob.number * max_rate_factor(window) if target.name == "loss" else math.inf
        raised = knob.bounded(min(knob.number * factor, ceiling, length_limit))
        if raised < knob.number * 1.2:
            return []
        certainty = confidence(window, hit_rate=self.ALIGNED_CONFIDENCE, target=target.name, gain=0.03, horizon=40)
        return _scale_votes(window, raised, why, certainty, gain=0.03, horizon=40, symptom="gradients_aligned")

    def _may_leave_initialisation(self, window: Window) -> bool:
        """Return whether the model may still be leaving its initialisation, where gradients agree at any rate."""
        if objective(window.run).name != "loss" or window.applied(SCALE):
            return False
        measured = len(window.surviving_series(ALIGNMENT, last=self.INITIAL_TICKS))
        is_early = window.progress < self.INITIAL_PROGRESS and window.run.horizon.is_known
        return measured < self.INITIAL_TICKS or is_early

    def _agreement_fades(self, window: Window) -> bool:
        """Return whether the agreement of gradients fades, as it does by itself at a good rate."""
        cosines = self._cosines(window, 2 * self.FADE_WINDOW)
        shift = shift_of_halves(cosines)
        return len(shift.before) < self.WINDOW or fmean(shift.now) < self.MIN_REMAINING_SHARE * fmean(shift.before)

    def _schedule_lowered_rate(self, window: Window) -> bool:
        """Return whether the user's schedule has lowered the rate of a loss. A policy's rate seldom has a schedule."""
        rates = window.series(RATE, after=window.last_change_tick(SCALE, ROLLBACK))
        return objective(window.run).name == "loss" and bool(rates) and rates[-1] < self.SCHEDULE_DECAY * max(rates)

    def _disagreed_earlier(self, window: Window) -> bool:
        """Return whether gradients once disagreed for a while at the same rate or a lower one."""
        rates = dict(window.surviving_series(RATE))
        newest = next(reversed(rates.values()), math.inf)
        cosines = window.surviving_series(ALIGNMENT)
        comparable = [cosine for tick, cosine in cosines if rates.get(tick, math.inf) < 1.1 * newest]
        spans = (comparable[start : start + 2 * self.WINDOW] for start in range(0, len(comparable), self.WINDOW))
        return any(len(span) == 2 * self.WINDOW and median(span) < self.MIN_LEAN_COSINE for span in spans)

    def _awaits_cut(self, window: Window) -> bool:
        """Return whether the last cut is too recent to show its effect."""
        cuts = [r.tick for r in window.applied(SCALE) if change_of(r) < 0]
        return bool(cuts) and window.tick < cuts[-1] + self.REPAIR_TICKS

    def _objective_worsens(self, window: Window) -> bool:
        """Return whether the objective gets worse, for example because of a wrong loss term."""
        target = objective(window.run)
        values = [-apply_sign(target, value) for _, value in window.surviving_series(target.name, last=3 * self.WINDOW)]
        return rise(values, self.WINDOW // 2) > 2

    def _check_agreement(self, window: Window) -> tuple[str, float] | None:
        """Return the reason and the factor of a raise, or None. A few steps are enough if the agreement is clear."""
        cosines = self._cosines(window, self.WINDOW)
        if len(cosines) < self.MIN_COSINES or _schedule_changed_rate(window, self.WINDOW):
            return None
        middle, quarter = median(cosines), quantile(cosines, 0.25)
        if middle < self.MIN_COSINE or quarter < self.MIN_QUARTILE:
            return None
        why = (
            f"gradients agree with their running mean (cosine {middle:.2f}, lower quartile {quarter:.2f} over "
            f"{len(cosines)} ticks; near 0 at the right rate)"
        )
        return why, 4.0 if middle >= self.CLEAR_COSINE else 2.5

    def _check_slight_agreement(self, window: Window) -> tuple[str, float] | None:
        """Return the reason and the factor of a raise for slight agreement, or None. Ignore the start and the end."""
        cosines = self._cosines(window, self.LEAN_WINDOW)
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
        return why, 2.5

    def _is_on_course(self, window: Window) -> bool:
        """Return whether the reward, at its current pace, gains more than ON_COURSE_GAIN over the whole run."""
        group_deviations = window.series("reward_std", last=self.LEAN_WINDOW)
        rewards = [reward for _, reward in window.surviving_series("reward")]
        if not group_deviations or len(rewards) < self.LEAN_WINDOW or not window.run.horizon.is_known:
            return False
        recent = shift_of_halves(rewards[-self.LEAN_WINDOW :])
        pace = recent.mean_difference / len(recent.now)  # per tick
        gain = fmean(recent.now) - fmean(rewards[: len(recent.now)])
        remaining_ticks = window.tick * (1 / window.progress - 1)
        return gain + pace * remaining_ticks > self.ON_COURSE_GAIN * median(group_deviations)

    def _cut_opposed(self, window: Window) -> list[Vote]:
        cosines = self._cosines(window, self.LONG_WINDOW)
        early = len(cosines) in self.EARLY_COUNTS
        if not (early or len(cosines) >= self.MIN_LONG_COSINES) or _schedule_changed_rate(window, self.LONG_WINDOW):
            return []
        shift = shift_of_halves(cosines)
        if max(fmean(shift.before), fmean(shift.now)) > self.MAX_OPPOSED_COSINE:
            return []
        sigmas = self.EARLY_SIGMAS if early else self.SIGMAS
        solved_share = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean + sigmas * error > 0 or solved_share > self.MAX_SOLVED_SHARE:
            return []  # if most groups are solved, the gradient is the noise of the few others
        if objective(window.run).name == "loss" and not self._loss_worsens(window, len(cosines)):
            return []  # at a good rate, steps also overshoot in a few directions
        lowered = _lowered_scale(window)
        if lowered is None:
            return []
        why = (
            f"successive gradients cancel each other (cosine with their running mean {mean:.2f} ± {error:.2f} over "
            f"{len(cosines)} ticks)"
        )
        certainty = confidence(
            window, hit_rate=self.OPPOSED_CONFIDENCE, target=objective(window.run).name, gain=0.05, horizon=30
        )
        return _scale_votes(window, lowered, why, certainty, gain=0.05, horizon=30, symptom="gradients_opposed")

    def _cut_stalled(self, window: Window) -> list[Vote]:
        if window.tick % self.STALL_INTERVAL:
            return []
        target = objective(window.run)
        since = window.last_change_tick()
        values = window.series(target.name, after=since, last=2 * self.STALL_HALF)
        if len(values) < 2 * self.STALL_HALF or _schedule_changed_rate(window, 2 * self.STALL_HALF):
            return []
        solved_share = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        old, new = fmean(values[: self.STALL_HALF]), fmean(values[self.STALL_HALF :])
        error = noise(values) * math.sqrt(2 / self.STALL_HALF)
        is_flat = apply_sign(target, new - old) < 2 * error < self.MIN_RESOLUTION * abs(old)
        cosines = window.series(ALIGNMENT, after=since, last=self.STALL_HALF)
        if not is_flat or solved_share > self.MAX_SOLVED_SHARE or len(cosines) < self.STALL_HALF or fmean(cosines) > 0:
            return []
        lowered = _lowered_scale(window)
        if lowered is None:
            return []
        why = (
            f"{target.name} did not improve over {2 * self.STALL_HALF} ticks ({old:.4g} → {new:.4g} ± {error:.2g}), "
            f"and gradients do not agree (cosine {fmean(cosines):.2f})"
        )
        certainty, gain = tentative_confidence(window.run), self.MIN_RESOLUTION * abs(old)
        return _scale_votes(window, lowered, why, certainty, gain=gain, horizon=60, symptom=f"{target.name}_plateau")

    def _cosines(self, window: Window, last: int) -> list[float]:
        """Return the cosines since the rate last changed, without the ticks in which the running mean still adapts."""
        since = window.last_change_tick(SCALE, ROLLBACK)
        cosines = window.series(ALIGNMENT, after=since + self.SETTLING_TICKS if since >= 0 else -1, last=last)
        return [cosine for cosine in cosines if math.isfinite(cosine)]


def _lowered_scale(window: Window) -> float | None:
    """Return the scale divided by 2.5, or None if the run lacks the knob or its lower bound allows no cut."""
    knob = window.knobs.get(SCALE)
    lowered = knob.bounded(knob.number / 2.5) if knob else math.inf
    return lowered if knob and lowered <= knob.number / 1.2 else None


def _scale_votes(
    window: Window, scale: float, why: str, certainty: float, *, gain: float, horizon: int, symptom: str
) -> list[Vote]:
    """Propose a scale. `gain` is the forecast gain of the objective."""
    target = objective(window.run)
    return [
        window.propose(
            SCALE, scale, confidence=certainty, why=f"{why}: {SCALE} {window.knobs[SCALE].number:.3g} → {scale:.3g}",
            target=target.name, expected_change=apply_sign(target, gain), horizon=horizon,
            evidence=(f"symptom:{symptom}",),
        )
    ]  # fmt: skip


def _schedule_changed_rate(window: Window, ticks: int) -> bool:
    """Return whether a schedule, such as warm-up or decay, changed the rate within the last ticks."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    rates = window.series("learning_rate", after=since, last=ticks)
    return bool(rates) and max(rates) > 1.02 * min(rates)

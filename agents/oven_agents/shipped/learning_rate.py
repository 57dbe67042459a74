"""Tunes the learning rate: raises it when it is too low, cuts it when it is too high, and rolls back what it broke."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Plan
from oven_agents.sdk.window import Window, change_of
from oven_agents.stats.confidence import confidence, needs_second
from oven_agents.stats.evaluation_request import held_out_evidence, request_evaluation
from oven_agents.stats.level_shift import halves, rise
from oven_agents.stats.lost_progress import EASED, last_healthy, loss_given_back, lost_rewards
from oven_agents.stats.objective import held_out, objective, signed
from oven_agents.stats.optimizer_gauges import RATE, decay_share, shrink_share
from oven_agents.stats.policy_shift import is_off_policy, policy_shifted
from oven_agents.stats.robust_statistics import noise, quantile
from oven_agents.stats.rollback_success import scales_rolled_back
from oven_agents.stats.update_to_weight_ratio import overlong, room
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import RunStarted, Vote

SCALE, ROLLBACK, MIXTURE = "optimizer.lr_scale", "run.rollback", "data.mixture"
ALIGNMENT = "optim/grad_momentum_cos"


class LearningRate(Agent):
    """Signals: the rate is too low if each gradient points where the running mean of the last gradients did; near the
    right rate, successive gradients are unrelated. This is the sign rule of hypergradient descent (Baydin et al. 2018,
    arXiv 1703.04782) over a window. The rate is too high if successive gradients undo each other while a loss gets
    worse. It is far too high if steps are long and the loss gave back a third of its gain, or if the reward is gone and
    the policy itself has changed (oven_agents.stats.policy_shift) on its own completions. Training has stalled if the
    objective did not improve over hundreds of steps, in which a gain of one hundredth would be visible, and successive
    gradients do not agree. A loss that jumps is left to divergence.

    Actions: raises a rate that is too low. Cuts one that is too high, or stalled: a lower rate averages out the noise
    that is left. The damage of a rate far too high does not heal by itself, so rollback and cut are one plan. After a
    rollback, the rate stays below a quarter of the value that failed, and it is not raised before a cut has shown its
    effect.

    False alarms: opposed gradients are reported in 2 % of runs of 400 ticks of pure noise, and in 3.7 % by the early
    check. Agreeing gradients do not justify a higher rate if weight decay shrinks the weights, if the objective gets
    worse, if the model still leaves its random initialisation, if the agreement fades by itself as at a fitting rate,
    or if gradients did not agree earlier at a rate that was no higher.

    Limits: the agent is silent while the user's own schedule moves the rate. Without the cosine (sharded gradients, an
    imported run) it only sees a collapse.
    """

    moves = (SCALE, ROLLBACK, EVALUATE)
    speciality = (SCALE, ROLLBACK, EVALUATE)
    options = dict.fromkeys(
        (
            "aligned", "quartile", "well_aligned", "solved", "telling", "leaning", "late", "known", "shrinking",
            "young", "stays", "decayed", "given_back", "overlong", "gone", "along", "against", "resolved",
        ),
        SHARE,
    )  # fmt: skip

    WINDOW = 8
    """Newest ticks whose cosines show a rate that is too low. Eight steps separate one 10 to 30 times too low."""
    LEAST = 6
    """Cosines that must be measured within WINDOW. A median and a quartile of fewer are single values."""
    SETTLE = 2
    """Ticks after a rate change that are ignored because the running mean still turns. A rollback also goes back this
    many ticks before the first long step."""
    ALIGNED = 0.40
    """Median cosine from which the rate is too low. Over the first 20 steps it was 0.50 to 0.57 at a tenth of the rate
    and below, and 0.04 to 0.21 at the right rate."""
    QUARTILE = 0.30
    """Lower quartile that the cosines must also reach, so that a few high values are not enough."""
    WELL_ALIGNED = 0.50
    """Median cosine from which the rate is raised by 4 instead of 2.5: 0.54 to 0.57 at a thirtieth of the rate."""
    OPPOSED = -0.05
    """Mean cosine of either half of the window up to which gradients are opposed. At three times the rate it was −0.09
    to −0.10. With −0.08 here, one start of `bench starts` ended at 0.241 instead of 0.573."""
    LONG_LEAST = 20
    """Fewest cosines for opposed and leaning gradients. With SIGMAS, 2 % of 400 ticks of noise give a false alarm."""
    LONG_WINDOW = 60
    """The most ticks that opposed gradients are read from. More would describe an earlier state of the model."""
    SIGMAS = 3.5
    """Standard errors that a mean cosine, or a worsening loss, must exceed. The check runs at every tick, and noise
    crosses two standard errors every few dozen ticks."""
    EARLY = range(12, 15)
    """Counts of cosines for the early check of opposed gradients. It raised two starts from 0.914 and 0.903 to 0.940
    and 0.932."""
    EARLY_SIGMAS = 2.5
    """Standard errors for the early check: false alarms in 3.7 % of runs of pure noise."""
    SOLVED = 0.6
    """Median share of groups without spread, 0 to 1, above which the gradient is the noise of a few groups and is
    ignored. No measurement is recorded; a lower value silences the agent more often near the ceiling."""
    TELLING = 0.15
    """Lowest best level of a reward from which a collapse is visible. Half of almost nothing is within the noise."""
    LEANING = 0.04
    """Mean cosine from which gradients lean the same way, where small batches hide it over a few ticks. At the right
    rate it was −0.07 to 0.04 after the first ten steps."""
    LEAN_WINDOW = 40
    """Ticks that a lean is read from. More than WINDOW, because each tick carries less information."""
    SETTLED = 60
    """Ticks before a lean is read. At the start all gradients lead away from the random initialisation."""
    LATE = 0.75
    """Progress of the run, 0 to 1, after which a lean is ignored. Near the end a rate is low for a reason."""
    KNOWN = 0.2
    """Mean share of repeated rows, 0 to 1, above which a lean is ignored: the same rows have the same gradients."""
    SHRINKING = 0.3
    """Share of each step's length, 0 to 1, from which decay explains the agreement. A tuned run had at most 0.012."""
    CUT = 8.0
    """Factor of the cut after a collapse. With a rollback it undid 0.90 of the harm of a rate 25 times too high."""
    REPAIR = 20
    """Ticks after a cut without a raise. With 40, `wide_encoding` fell from 0.48 to 0.15 of the harm undone."""
    DRAWN = 40
    """Ticks after which high gradient agreement can no longer be explained by random initialisation. On models of 30 k
    to 1 M parameters the cosine fell below ALIGNED within 10 to 30 ticks."""
    YOUNG = 0.05
    """Share of the run, 0 to 1, in which weights count as freshly initialised: larger models take longer than DRAWN."""
    FADING = 30
    """Ticks whose mean cosine is compared with that of as many ticks before. Over them, 0.98 separated tuned rates from
    a tenth of them on development seeds."""
    STAYS = 0.98
    """Share of the earlier mean cosine that must remain. On development seeds it was at most 0.97 at fitting rates with
    gradients that still agreed, and above at every rate of a tenth."""
    DECAYED = 0.6
    """Share of the highest rate, 0 to 1, below which the user's schedule has lowered the rate: a stage of a step
    schedule, or much of a slow one. Smaller falls do not mean that the rate should be low."""
    LOST = 12
    """Ticks for which a loss must have given back its gain; twice as many if it had gained nothing. A loss that
    exploded in the first ten steps recovered by step 25, after an unnecessary cut."""
    GIVEN_BACK = 1 / 3
    """Share of its gain, 0 to 1, that a loss must have given back. Length alone led to cuts of other models' tuned
    rates."""
    OVERLONG = 0.85
    """Confidence for steps that are too long, from outcomes in development. 0.85 is the highest value for such
    figures."""
    GONE = 0.75
    """Confidence for a lost reward, also from outcomes. The reward itself may be at fault."""
    ALONG = 0.85
    """Confidence for agreeing gradients before noise is counted: 0.98 came true in GRPO, 0.65 in pretraining."""
    AGAINST = 0.8
    """Confidence for opposed gradients before noise is counted, also from outcomes. A stall has no such figure: there
    may be nothing left to learn, and the cut is a rule of thumb."""
    HALF = 200
    """Ticks in each half of the window for a stall, so that one hundredth of the objective stands out from noise."""
    SELDOM = 20
    """Ticks between two checks for a stall. The answer would be the same at every tick."""
    RESOLVED = 0.01
    """Difference between the two halves that must be measurable, as a share of the objective, 0 to 1. It is also the
    forecast gain of a cut at a stall."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        if not published & {"reward", "loss"}:
            return "the run publishes neither reward nor loss"
        if "reward" not in published and ALIGNMENT not in published:
            return f"the run publishes no {ALIGNMENT}: whether its rate fits cannot be told from the loss alone"
        return None

    def vote(self, window: Window) -> Vote | Sequence[Vote] | Plan | None:
        return (
            self._collapsed(window)
            or self._too_long(window)
            or self._too_low(window)
            or self._opposed(window)
            or self._stalled(window)
        )

    def _too_long(self, window: Window) -> Plan | None:
        """Long steps together with a loss that gave back its gain. No lower rate repairs weights that a high rate has
        broken. The length alone says nothing about another model: Adam's first steps are as long without a warm-up, and
        weights with a small initialisation grow."""
        target = objective(window.run)
        steps = overlong(window) if target.name == "loss" else None
        if steps is None or ROLLBACK not in window.knobs:
            return None
        since = window.last_change_tick(SCALE, ROLLBACK)
        lost = loss_given_back(window, since, share=self.GIVEN_BACK, ticks=self.LOST)
        if lost is None:
            return None
        knob = window.knobs[SCALE]
        lowered = knob.bounded(knob.number / steps.excess)
        if lowered > knob.number / 1.2:
            return None  # a rollback without its cut would only lead here again
        back = max(0, steps.onset - self.SETTLE)
        why = (
            f"{lost}, and a step moves the weights by {steps.length:.1%} of their norm; back to tick {back}, before "
            f"they did, and {SCALE} {knob.number:.3g} → {lowered:.3g} together"
        )
        return Plan.of_changes(
            window, "rollback_and_cut", {SCALE: lowered, ROLLBACK: float(back)}, confidence=self.OVERLONG, why=why,
            target=target.name, expected_change=signed(target, 0.05), horizon=60,
            evidence=("symptom:update_ratio_high",),
        )  # fmt: skip

    def _declines(self, window: Window, ticks: int) -> bool:
        """Return whether the loss got worse from the first half of the last ticks to the second, beyond its noise."""
        target = objective(window.run)
        values = [signed(target, v) for v in window.series(target.name, last=ticks) if math.isfinite(v)]
        shift, half = halves(values), len(values) // 2
        if half < 2:
            return False
        error = max(stdev(shift.before), stdev(shift.now)) * math.sqrt(2 / half)
        return shift.of_means < -self.SIGMAS * error

    def _collapsed(self, window: Window) -> Plan | Vote | None:
        since = window.last_change_tick(SCALE, ROLLBACK)
        changed = window.last_change_tick(SCALE)
        if changed >= 0 and window.tick <= changed + window.run.rules.cooldown_ticks:
            return None  # the cut would be turned down, and a rollback alone would only collapse again
        if objective(window.run).name != "reward":
            return None
        # After a change of mixture the reward by level: harder data lower the mean, and are no collapse.
        by_level = window.last_change_tick(MIXTURE) > since
        lost = lost_rewards(window, since, telling=self.TELLING, by_level=by_level)
        if not lost or is_off_policy(window):
            return None
        healthy = last_healthy(window, since)
        onset = healthy + EASED + 1
        evidence = held_out_evidence(window, onset).state
        if evidence == "ask":
            return request_evaluation(window, f"{lost[0].name} fell from {lost[0].was:.2f} to {lost[0].now:.2f}")
        if evidence == "wait" or not policy_shifted(window, onset):
            return None
        scale = window.knobs[SCALE].number
        cut = window.knobs[SCALE].bounded(scale / self.CUT)
        if cut > scale / 1.2:
            return None
        back = max(since, healthy, 0)
        name, was, now, low = lost[0]
        why = (
            f"{name} fell from {was:.2f} to {now:.2f} and has stayed there for {low} ticks at scale {scale:.3g}; back "
            f"to tick {back} and {SCALE} {scale:.3g} → {cut:.3g} together"
        )
        target = held_out(window.run) or objective(window.run)  # the reward itself may have changed its meaning
        changes = {SCALE: cut} | ({ROLLBACK: back} if ROLLBACK in window.knobs else {})
        gain = was - now if target.name == "reward" else 0.05
        return Plan.of_changes(
            window, "rollback_and_cut", changes, confidence=self.GONE, why=why, target=target.name,
            expected_change=signed(target, gain), horizon=20, evidence=("symptom:policy_collapse",),
        )  # fmt: skip

    def _too_low(self, window: Window) -> list[Vote]:
        aligned = self._aligned(window)
        raise_reason = aligned or self._leaning(window)
        if (
            not raise_reason
            or self._new(window)
            or self._sudden(window)
            or self._repairing(window)
            or max(shrink_share(window), decay_share(window)) > self.SHRINKING
            or self._worsens(window)
            or self._decayed(window)
            or (self._fades(window) and not (aligned and objective(window.run).name == "reward"))
        ):
            return []
        why, factor = raise_reason
        knob = window.knobs[SCALE]
        ceiling = min((scale / 4 for scale in scales_rolled_back(window)), default=math.inf)
        target = objective(window.run)
        longest = knob.number * room(window) if target.name == "loss" else math.inf
        raised = knob.bounded(min(knob.number * factor, ceiling, longest))
        if raised < knob.number * 1.2:
            return []
        sure = confidence(window, hit_rate=self.ALONG, target=target.name, gain=0.03, horizon=40)
        return _changed(window, raised, why, sure, gain=0.03, horizon=40, symptom="gradients_aligned")

    def _new(self, window: Window) -> bool:
        """Return whether the model may still be leaving its random initialisation, where gradients agree at any
        rate."""
        if objective(window.run).name != "loss" or window.applied(SCALE):
            return False
        measured = len(window.surviving_series(ALIGNMENT, last=self.DRAWN))
        young = window.progress < self.YOUNG and window.run.horizon.known
        return measured < self.DRAWN or young

    def _fades(self, window: Window) -> bool:
        """Return whether the agreement of gradients fades. At a fitting rate it fades by itself as training leaves its
        first slope; at a rate that is too low it stays."""
        cosines = self._cosines(window, 2 * self.FADING)
        shift = halves(cosines)
        return len(shift.before) < self.WINDOW or fmean(shift.now) < self.STAYS * fmean(shift.before)

    def _decayed(self, window: Window) -> bool:
        """Return whether the user's own schedule has lowered the rate of a loss. A policy's rate seldom follows such a
        schedule, and a fall is more likely a fault."""
        rates = window.series(RATE, after=window.last_change_tick(SCALE, ROLLBACK))
        return objective(window.run).name == "loss" and bool(rates) and rates[-1] < self.DECAYED * max(rates)

    def _sudden(self, window: Window) -> bool:
        """Return whether gradients did not agree for a while at a rate that was no higher."""
        rates = dict(window.surviving_series(RATE))
        newest = next(reversed(rates.values()), math.inf)
        seen = window.surviving_series(ALIGNMENT)
        before = [cosine for tick, cosine in seen if rates.get(tick, math.inf) < 1.1 * newest]
        spans = (before[start : start + 2 * self.WINDOW] for start in range(0, len(before), self.WINDOW))
        return any(len(span) == 2 * self.WINDOW and median(span) < self.LEANING for span in spans)

    def _repairing(self, window: Window) -> bool:
        """Return whether a cut has yet to show its effect."""
        cuts = [r.tick for r in window.applied(SCALE) if change_of(r) < 0]
        return bool(cuts) and window.tick < cuts[-1] + self.REPAIR

    def _worsens(self, window: Window) -> bool:
        """Return whether the objective gets worse, as when a wrong loss term drags the model off."""
        target = objective(window.run)
        values = [-signed(target, value) for _, value in window.surviving_series(target.name, last=3 * self.WINDOW)]
        return rise(values, self.WINDOW // 2) > 2

    def _aligned(self, window: Window) -> tuple[str, float] | None:
        """Return the reason and the factor of a raise, or None. A few steps are enough if the agreement is clear."""
        cosines = self._cosines(window, self.WINDOW)
        if len(cosines) < self.LEAST or _schedule_moves(window, self.WINDOW):
            return None
        middle, quarter = median(cosines), quantile(cosines, 0.25)
        if middle < self.ALIGNED or quarter < self.QUARTILE:
            return None
        why = (
            f"gradients agree with their running mean (cosine {middle:.2f}, lower quartile {quarter:.2f} over "
            f"{len(cosines)} ticks; near 0 at a fitting rate)"
        )
        return why, 4.0 if middle >= self.WELL_ALIGNED else 2.5

    def _leaning(self, window: Window) -> tuple[str, float] | None:
        """Return the same for agreement that small batches hide over a few ticks: not at the start, when gradients lead
        away from the initialisation, and not near the end, when a rate is low for a reason."""
        cosines = self._cosines(window, self.LEAN_WINDOW)
        if len(cosines) < self.LONG_LEAST or window.progress > self.LATE:
            return None
        shift = halves(cosines)
        if min(fmean(shift.before), fmean(shift.now)) < self.LEANING:
            return None
        if len(window.observations) < self.SETTLED or _schedule_moves(window, self.LEAN_WINDOW):
            return None
        if fmean(window.series("data/repeated", last=self.LONG_LEAST) or [0.0]) > self.KNOWN:
            return None  # the same rows have the same gradients
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean - self.SIGMAS * error < self.LEANING:
            return None
        why = (
            f"gradients lean the same way (cosine with their running mean {mean:.2f} ± {error:.2f} over {len(cosines)} "
            "ticks; not above 0 at a fitting rate)"
        )
        return why, 2.5

    def _opposed(self, window: Window) -> list[Vote]:
        cosines = self._cosines(window, self.LONG_WINDOW)
        early = len(cosines) in self.EARLY
        if not (early or len(cosines) >= self.LONG_LEAST) or _schedule_moves(window, self.LONG_WINDOW):
            return []
        shift = halves(cosines)
        if max(fmean(shift.before), fmean(shift.now)) > self.OPPOSED:
            return []
        sigmas = self.EARLY_SIGMAS if early else self.SIGMAS
        solved = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        mean, error = fmean(cosines), stdev(cosines) / math.sqrt(len(cosines))
        if mean + sigmas * error > 0 or solved > self.SOLVED:
            return []  # with most groups solved the gradient is a few groups' noise, and says little
        if objective(window.run).name == "loss" and not self._declines(window, len(cosines)):
            return []  # steps that overshoot along a few directions are what a fitting rate looks like, too
        lowered = _lowered(window)
        if lowered is None:
            return []
        why = (
            f"successive gradients undo each other (cosine with their running mean {mean:.2f} ± {error:.2f} over "
            f"{len(cosines)} ticks)"
        )
        sure = confidence(window, hit_rate=self.AGAINST, target=objective(window.run).name, gain=0.05, horizon=30)
        return _changed(window, lowered, why, sure, gain=0.05, horizon=30, symptom="gradients_opposed")

    def _stalled(self, window: Window) -> list[Vote]:
        if window.tick % self.SELDOM:
            return []  # it would say the same at every tick
        target = objective(window.run)
        since = window.last_change_tick()
        values = window.series(target.name, after=since, last=2 * self.HALF)
        if len(values) < 2 * self.HALF or _schedule_moves(window, 2 * self.HALF):
            return []
        solved = median(window.series("frac_reward_zero_std", last=self.LONG_WINDOW) or [0.0])
        was, now = fmean(values[: self.HALF]), fmean(values[self.HALF :])
        error = noise(values) * math.sqrt(2 / self.HALF)
        flat = signed(target, now - was) < 2 * error < self.RESOLVED * abs(was)
        cosines = window.series(ALIGNMENT, after=since, last=self.HALF)
        if not flat or solved > self.SOLVED or len(cosines) < self.HALF or fmean(cosines) > 0:
            return []
        lowered = _lowered(window)
        if lowered is None:
            return []
        why = (
            f"{target.name} did not improve over {2 * self.HALF} ticks ({was:.4g} → {now:.4g} ± {error:.2g}), and "
            f"gradients do not agree (cosine {fmean(cosines):.2f})"
        )
        sure, gain = needs_second(window.run), self.RESOLVED * abs(was)
        return _changed(window, lowered, why, sure, gain=gain, horizon=60, symptom=f"{target.name}_plateau")

    def _cosines(self, window: Window, last: int) -> list[float]:
        """Return the cosines since the rate last changed, without the ticks in which the running mean still turns."""
        since = window.last_change_tick(SCALE, ROLLBACK)
        cosines = window.series(ALIGNMENT, after=since + self.SETTLE if since >= 0 else -1, last=last)
        return [cosine for cosine in cosines if math.isfinite(cosine)]


def _lowered(window: Window) -> float | None:
    """Return the scale lowered by 2.5; None if the run lacks the knob or there is no room for a cut."""
    knob = window.knobs.get(SCALE)
    lowered = knob.bounded(knob.number / 2.5) if knob else math.inf
    return lowered if knob and lowered <= knob.number / 1.2 else None


def _changed(
    window: Window, scale: float, why: str, sure: float, *, gain: float, horizon: int, symptom: str
) -> list[Vote]:
    """Propose a scale. `gain` is the forecast gain of the objective."""
    target = objective(window.run)
    return [
        window.propose(
            SCALE, scale, confidence=sure, why=f"{why}: {SCALE} {window.knobs[SCALE].number:.3g} → {scale:.3g}",
            target=target.name, expected_change=signed(target, gain), horizon=horizon,
            evidence=(f"symptom:{symptom}",),
        )
    ]  # fmt: skip


def _schedule_moves(window: Window, ticks: int) -> bool:
    """Return whether the rate changed within the last ticks without a decision: warm-up or decay."""
    since = window.last_change_tick(SCALE, ROLLBACK)
    rates = window.series("learning_rate", after=since, last=ticks)
    return bool(rates) and max(rates) > 1.02 * min(rates)

"""Lowers the weight of a judge that has changed, or that the policy has learnt to exploit."""

from __future__ import annotations

import math
from statistics import fmean

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.evaluation_request import can_evaluate, has_recent_reading, request_evaluation
from oven_agents.stats.health import Health
from oven_agents.stats.level_shift import Shift, shift_of_newest
from oven_agents.stats.objective import held_out_metric, objective, readings
from oven_agents.stats.policy_shift import MIN_QUALITY_DROP, quality_dropped
from oven_agents.stats.reviews import review_change
from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import BallotOpened, RunStarted, Value, Vote

REWARD_WEIGHTS, ROLLBACK, MIXTURE = "reward.weights", "run.rollback", "data.mixture"
AGREEMENT, COMPLETION_LENGTH = "committee/agreement", "completions/mean_length"
MIN_NOISE = 1e-3
"""Minimum standard deviation of a judge's mean score, for judges that hardly vary."""


class RewardHacking(Agent):
    """Signals: a judge has changed, or judges diverge. All judges score the same completions of a policy that changes
    in small steps, so their mean scores normally move slowly and together. A judge has changed if its mean jumps up
    from one step to the next and no other mean does. Learning cannot cause such a jump, but an updated service or a
    constant answer can. A jump down is ignored, because the strictest judge falls first when the policy gets worse.
    Judges diverge if the mean of one rises while the mean of another falls, and held-out quality falls, too. In that
    case, a proxy reward is over-optimised (Gao et al. 2022, arXiv 2210.10760). Ensembles of judges delay
    over-optimisation but do not prevent it (Eisenstein et al. 2023, arXiv 2312.09244). Longer answers and lower
    agreement are reported as well.

    Actions: cuts the judge's weight to a tenth. The other judges get the rest in proportion to their weights. If judges
    diverged, the agent also rolls back to a tick before the divergence. It reviews other agents' changes: while judges
    diverge, a harder push would optimise the exploited judge faster.

    False alarms: for a jump, the mean of one judge must move by six standard errors, and its values before and after
    must not overlap. All other means must move by less than half of that. By chance, this happens in less than 10⁻⁵ of
    the steps. If held-out readings jump up, too, the policy has improved. Means that diverge must rise by 4 and fall by
    3 standard errors. Noise that judges share moves both in the same direction.

    Limits: judges that are all fooled together do not diverge. A judge of weight 0 only serves as a reference for the
    others. The agent is silent without a held-out metric. It reads every step, while the reward_weights agent needs
    several evaluations.
    """

    needs = ("rewards/*/mean",)
    moves = (REWARD_WEIGHTS, ROLLBACK, EVALUATE)
    options = dict.fromkeys(
        ("min_jump", "min_move", "jump_confidence", "divergence_confidence", "remaining_share"), SHARE_BOUNDS
    )

    JUMP_STEPS = 4
    """Number of newest steps for a jump. By chance, four values are all above eight others in one case of 495."""
    NOISE_STEPS = 40
    """Number of steps before JUMP_STEPS that give a judge's noise."""
    JUMP_ERRORS = 6.0
    """Standard errors that a judge's jump must exceed."""
    CALM_ERRORS = 2.5
    """Maximum standard errors of every other judge, so that one judge is not blamed for a shared change."""
    MIN_JUMP = 0.1
    """Minimum jump of a mean score, 0 to 1. It matters only if the judge has little noise."""
    RECENT_STEPS = 12
    """Number of newest steps in which judges diverge. A rollback goes back twice as far."""
    REFERENCE = 40
    """Number of steps before RECENT_STEPS with which the newest means are compared."""
    RISE_ERRORS = 4.0
    """Minimum rise of a fooled judge's mean in standard errors, and minimum shift of answer length and agreement."""
    FALL_ERRORS = -3.0
    """Shift in standard errors below which another judge's mean is falling. Shared noise moves both the same way."""
    MIN_MOVE = 0.03
    """Minimum change of the rising and the falling mean, 0 to 1. A significant change may be too small to matter."""
    JUMP_CONFIDENCE = 0.9
    """Confidence for a judge that changed. Learning never moves one judge alone within one step."""
    DIVERGENCE_CONFIDENCE = 0.7
    """Confidence for judges that diverge. It is lower, because a policy may improve in one respect only."""
    REMAINING_SHARE = 0.1
    """Share of its weight, 0 to 1, that a judge keeps until a person has checked it."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        weights = next((spec for spec in run.actuators if spec.name == REWARD_WEIGHTS), None)
        if weights is None:
            return f"the run announces no {REWARD_WEIGHTS}, so no judge's weight can be lowered"
        if held_out_metric(run) is None:
            return (
                "the run announces no held-out metric with a direction, so nothing shows whether new weights are better"
            )
        published = {metric.name for metric in run.metrics}
        unmeasured = [judge for judge in weights.choices if f"rewards/{judge}/mean" not in published]
        if unmeasured:
            return f"the run publishes no mean score of {', '.join(unmeasured)}"
        return "the run has only one judge" if len(weights.choices) < 2 else None

    def vote(self, window: Window) -> Alternatives | Vote | None:
        return self._treat_changed_judge(window) or self._treat_diverging_judges(window)

    def can_review(self, run: RunStarted) -> bool:
        return self.cannot_fire(run) is None

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        health = self._judges_health(window)
        if health is None or (ballot.actuator == REWARD_WEIGHTS and health.state == "steady"):
            return None  # judges that do not diverge are no reason for new weights
        return review_change(ballot, window, lambda _: health)

    def _judges_health(self, window: Window) -> Health | None:
        """Return "worse" while judges diverge, "steady" while they do not, and None with too few values."""
        means = tuple(f"rewards/{judge}/mean" for judge in window.knobs[REWARD_WEIGHTS].shares)
        if any(self._measure_shift(window, mean) is None for mean in means):
            return None
        divergence = self._find_divergence(window)
        if divergence is not None:
            _, why = divergence
            metric = held_out_metric(window.run)
            return Health("worse", why, (*means, metric.name) if metric else means)
        # The reward is the weighted mean of the judges' scores, so it is no independent second signal.
        text = "no judge's mean score rises while that of another and held-out quality fall"
        return Health("steady", text, (*means, objective(window.run).name))

    def _treat_changed_judge(self, window: Window) -> Alternatives | None:
        shares = window.knobs[REWARD_WEIGHTS].shares
        jumps_or_none = {judge: self._measure_jump(window, judge) for judge in shares}
        jumps = {judge: jump for judge, jump in jumps_or_none.items() if jump is not None}
        for judge, (errors, difference) in jumps.items():
            others = [abs(other_errors) for name, (other_errors, _) in jumps.items() if name != judge]
            is_alone = bool(others) and max(others) < self.CALM_ERRORS
            if errors > self.JUMP_ERRORS and difference > self.MIN_JUMP and is_alone and not self._quality_rose(window):
                why = (
                    f"the mean score of {judge} jumped by {difference:+.2f} within {self.JUMP_STEPS} steps "
                    f"({errors:.0f} standard errors), and no other judge's score did"
                )
                return self._offer(window, judge, why, "judge_disagreement", None)
        return None

    def _treat_diverging_judges(self, window: Window) -> Alternatives | Vote | None:
        divergence = self._find_divergence(window)
        if divergence is None:
            return None
        fooled, why = divergence
        if can_evaluate(window) and not has_recent_reading(window):
            return request_evaluation(window, why)
        return self._offer(window, fooled, why, "reward_up_heldout_down", window.tick - 2 * self.RECENT_STEPS)

    def _find_divergence(self, window: Window) -> tuple[str, str] | None:
        """Return the judge whose mean rises most while another's and held-out quality fall, with the reason."""
        rises, falls = {}, {}
        for judge, share in window.knobs[REWARD_WEIGHTS].shares.items():
            errors, difference = self._measure_shift(window, f"rewards/{judge}/mean") or (0.0, 0.0)
            if errors > self.RISE_ERRORS and difference > self.MIN_MOVE and share > 0:
                rises[judge] = difference
            if errors < self.FALL_ERRORS and difference < -self.MIN_MOVE:
                falls[judge] = -difference
        if not rises or not falls or not self._quality_fell(window):
            return None
        fooled = max(rises, key=lambda judge: rises[judge])
        falls_text = " and ".join(f"that of {judge} fell by {fall:.2f}" for judge, fall in falls.items())
        why = (
            f"the mean score of {fooled} rose by {rises[fooled]:.2f} in {self.RECENT_STEPS} steps while "
            f"{falls_text}, and held-out quality fell"
        )
        return fooled, why

    def _quality_rose(self, window: Window) -> bool:
        """Return whether the held-out readings of the jump's steps are better than all in the NOISE_STEPS before it.
        The policy itself has then improved, as in a fast recovery, and the judge has noticed."""
        points, jump_start = readings(window), window.tick - self.JUMP_STEPS
        before = [value for tick, value in points if jump_start - self.NOISE_STEPS < tick <= jump_start]
        now = [value for tick, value in points if tick > jump_start]
        return bool(before and now) and min(now) - max(before) > MIN_QUALITY_DROP * abs(max(before))

    def _quality_fell(self, window: Window) -> bool:
        """Return whether the newest held-out reading is below the best one, and below the mean of the REFERENCE steps.
        While quality recovers, a judge that was fooled falls and the others rise, although nothing is wrong."""
        points, recent_start = readings(window), window.tick - self.RECENT_STEPS
        before = [value for tick, value in points if recent_start - self.REFERENCE < tick <= recent_start]
        return bool(quality_dropped(window)) and (not before or points[-1][1] < fmean(before))

    def _offer(
        self, window: Window, judge: str, why: str, symptom: str, rollback_tick: int | None
    ) -> Alternatives | None:
        """Offer to lower the judge's weight. If `rollback_tick` is given, prefer to do so after a rollback."""
        metric = held_out_metric(window.run)
        shares = window.knobs[REWARD_WEIGHTS].shares
        others_share = 1 - shares[judge]
        freed_weight = shares[judge] * (1 - self.REMAINING_SHARE)
        if metric is None or shares[judge] <= 0 or others_share <= 0 or freed_weight < 0.02:
            return None
        symptoms = {symptom: 0.8}
        length_errors, _ = self._measure_shift(window, COMPLETION_LENGTH) or (0.0, 0.0)
        if length_errors > self.RISE_ERRORS:
            symptoms.setdefault("length_drift", 0.5)
        agreement_errors, _ = self._measure_shift(window, AGREEMENT) or (0.0, 0.0)
        if -agreement_errors > self.RISE_ERRORS:
            symptoms.setdefault("judge_disagreement", 0.5)
        new_shares = {name: round(share + freed_weight * share / others_share, 4) for name, share in shares.items()}
        new_shares[judge] = round(shares[judge] - freed_weight, 4)
        largest = max(new_shares, key=lambda name: new_shares[name])
        new_shares[largest] += 1 - math.fsum(new_shares.values())  # the rounding error
        why += f": lower the weight of {judge} from {shares[judge]:.0%} to {new_shares[judge]:.0%}"
        gain = -0.03 if metric.better == "down" else 0.03
        confidence = self.JUMP_CONFIDENCE if rollback_tick is None else self.DIVERGENCE_CONFIDENCE

        def create_plan(remedy: str, changes: dict[str, Value]) -> Plan:
            return Plan.of_changes(
                window, remedy, changes, confidence=confidence, why=why, target=metric.name, expected_change=gain,
                horizon=60,
            )  # fmt: skip

        plans = [create_plan("reweigh_rewards", {REWARD_WEIGHTS: new_shares})]
        if rollback_tick is not None and ROLLBACK in window.knobs:
            changes: dict[str, Value] = {ROLLBACK: float(max(0, rollback_tick)), REWARD_WEIGHTS: new_shares}
            plans.insert(0, create_plan("rollback_and_reweigh", changes))
        return offer(plans, symptoms)

    def _measure_shift(self, window: Window, metric: str) -> tuple[float, float] | None:
        """Return how far a metric's newest values differ from the earlier ones, as (standard errors, difference). Only
        values since the last relevant change count. Return None if there are too few measurements."""
        since = window.last_change_tick(REWARD_WEIGHTS, "committee.*", ROLLBACK, MIXTURE)
        values = window.series(metric, after=since, last=self.RECENT_STEPS + self.REFERENCE)
        shift = shift_of_newest(values, self.RECENT_STEPS)
        if len(shift.before) < min(self.REFERENCE, 2 * self.RECENT_STEPS) or not all(map(math.isfinite, values)):
            return None
        return shift.mean_difference / shift.standard_error(max(shift.noise, MIN_NOISE)), shift.mean_difference

    def _measure_jump(self, window: Window, judge: str) -> tuple[float, float] | None:
        """Return the difference between a judge's newest values and as many just before them, as (standard errors,
        difference). In so few steps, a trend is too small to be a jump. Return (0, 0) if the newest values overlap with
        the range of twice as many earlier ones. Return None if there are too few measurements."""
        since = window.last_change_tick(REWARD_WEIGHTS, "committee.*", ROLLBACK, MIXTURE)
        values = window.series(f"rewards/{judge}/mean", after=since, last=self.JUMP_STEPS + self.NOISE_STEPS)
        if len(values) < self.JUMP_STEPS + self.NOISE_STEPS or not all(map(math.isfinite, values)):
            return None
        before, now = values[-3 * self.JUMP_STEPS : -self.JUMP_STEPS], values[-self.JUMP_STEPS :]
        if min(now) <= max(before) and max(now) >= min(before):
            return 0.0, 0.0
        shift = Shift(before[self.JUMP_STEPS :], now)
        error = shift.standard_error(max(noise(values[: -self.JUMP_STEPS]), MIN_NOISE))
        return shift.mean_difference / error, shift.mean_difference

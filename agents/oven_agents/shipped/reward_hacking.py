"""Lowers the weight of a judge that changed, or that the policy has learnt to exploit."""

from __future__ import annotations

import math

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.evaluation_request import available, is_recent, request_evaluation
from oven_agents.stats.level_shift import Shift, newest
from oven_agents.stats.objective import held_out
from oven_agents.stats.policy_shift import quality_dropped
from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import RunStarted, Value, Vote

WEIGHTS, ROLLBACK, MIXTURE = "reward.weights", "run.rollback", "data.mixture"
AGREEMENT, LENGTH = "committee/agreement", "completions/mean_length"
LEAST_NOISE = 1e-3
"""Smallest standard deviation of a judge's mean score, for judges that hardly vary."""


class RewardHacking(Agent):
    """Signals: all judges see the same completions of a policy that moves in small steps, so their mean scores move
    slowly and together. A judge changed if its mean jumps up from one step to the next and no other's does: learning
    cannot cause that (an updated service, a constant answer). A fall says less, because the strictest judge falls first
    when the policy gets worse. Judges come apart if one's mean rises while another's falls, and held-out quality falls,
    by a new reading if the run can measure one: a proxy is optimised past its use (Gao et al. 2022, arXiv 2210.10760;
    ensembles delay it and do not prevent it, Eisenstein et al. 2023, arXiv 2312.09244). Longer answers and lower
    agreement are reported as well.

    Actions: the judge keeps a tenth of its share, and the rest goes to the others in proportion to theirs. If a judge
    fell, the agent also goes back to before the two came apart.

    False alarms: a jump is six standard errors of one judge without an overlap (one in 495 by order alone) and less
    than half of that for any other judge: below 10⁻⁵ per step. Two judges come apart by 4 and 3 standard errors, and
    noise that they share moves both the same way.

    Limits: judges that are all fooled together do not come apart. A judge of weight 0 is only a witness. The agent is
    silent without a held-out metric, which judges it. reward_weights only looks at held-out quality and needs some
    evaluations; this agent looks at every step.
    """

    needs = ("rewards/*/mean",)
    moves = (WEIGHTS, ROLLBACK, EVALUATE)
    speciality = (WEIGHTS, ROLLBACK, EVALUATE)
    options = dict.fromkeys(("least_jump", "least", "sure", "apart", "kept"), SHARE)

    NOW = 4
    """Newest steps for a jump. Four without an overlap with eight happen in one of 495 orders."""
    BEFORE = 40
    """Steps before NOW that must be measured, for a judge's noise."""
    JUMP = 6.0
    """Standard errors of its own noise beyond which a judge jumped: with the other signs below 10⁻⁵ per step."""
    CALM = 2.5
    """Standard errors within which every other judge must stay, so that a common movement is not blamed on one."""
    LEAST_JUMP = 0.1
    """Smallest jump, on a scale of 0 to 1, for judges with little noise."""
    LATELY = 12
    """Newest steps in which two judges come apart. A rollback goes back twice that."""
    REFERENCE = 40
    """Steps before LATELY to compare the means with."""
    ROSE = 4.0
    """Standard errors by which a fooled judge's mean, longer answers and lower agreement must rise."""
    FELL = -3.0
    """Standard errors below which another's mean must fall. Shared noise moves both the same way."""
    LEAST = 0.03
    """Smallest change of both means, on a scale of 0 to 1. A certain change may still be too small to matter."""
    SURE = 0.9
    """Confidence for a judge that changed. Learning never moves one judge alone from one step to the next."""
    APART = 0.7
    """Confidence for judges that came apart: less than for a jump, because a policy may improve in one respect only."""
    KEPT = 0.1
    """Share of its weight, 0 to 1, that the judge keeps, so that it still counts once a person has looked at it."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        weights = next((spec for spec in run.actuators if spec.name == WEIGHTS), None)
        if weights is None:
            return f"the run announces no {WEIGHTS}: no judge has a weight to lose"
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing would judge a change of the yardstick"
        unseen = [j for j in weights.choices if f"rewards/{j}/mean" not in {metric.name for metric in run.metrics}]
        if unseen or len(weights.choices) < 2:
            return f"the run publishes no mean score of {', '.join(unseen)}" if unseen else "there is only one judge"
        return None

    def vote(self, window: Window) -> Alternatives | Vote | None:
        return self._changed(window) or self._diverging_judges(window)

    def _changed(self, window: Window) -> Alternatives | None:
        shares = window.knobs[WEIGHTS].shares
        moved = {judge: self._jump(window, judge) for judge in shares}
        known = {judge: movement for judge, movement in moved.items() if movement is not None}
        for judge, (errors, difference) in known.items():
            others = [abs(z) for witness, (z, _) in known.items() if witness != judge]
            if errors > self.JUMP and difference > self.LEAST_JUMP and others and max(others) < self.CALM:
                why = (
                    f"the mean score of {judge} jumped by {difference:+.2f} within {self.NOW} steps "
                    f"({errors:.0f} standard errors), and no other judge's did"
                )
                return self._offer(window, judge, why, "judge_disagreement", None)
        return None

    def _diverging_judges(self, window: Window) -> Alternatives | Vote | None:
        shares = window.knobs[WEIGHTS].shares
        moved = {judge: self._moved(window, judge, self.LATELY, self.REFERENCE) for judge in shares}
        known = {judge: movement for judge, movement in moved.items() if movement is not None}
        rose = [j for j, (z, d) in known.items() if z > self.ROSE and d > self.LEAST and shares[j] > 0]
        fell = [j for j, (z, d) in known.items() if z < self.FELL and d < -self.LEAST]
        if not rose or not fell or not quality_dropped(window):
            return None
        fooled = max(rose, key=lambda judge: known[judge][1])
        why = (
            f"the mean score of {fooled} rose by {known[fooled][1]:.2f} in {self.LATELY} steps while that of "
            f"{', '.join(fell)} fell by {-min(known[judge][1] for judge in fell):.2f}, and held-out quality fell, too"
        )
        if available(window) and not is_recent(window):
            return request_evaluation(window, why)
        return self._offer(window, fooled, why, "reward_up_heldout_down", window.tick - 2 * self.LATELY)

    def _offer(self, window: Window, judge: str, why: str, symptom: str, back: int | None) -> Alternatives | None:
        metric = held_out(window.run)
        shares = window.knobs[WEIGHTS].shares
        rest = 1 - shares[judge]
        freed = shares[judge] * (1 - self.KEPT)
        if metric is None or shares[judge] <= 0 or rest <= 0 or freed < 0.02:
            return None
        symptoms = {symptom: 0.8}
        for gauge, sign, named in ((LENGTH, 1, "length_drift"), (AGREEMENT, -1, "judge_disagreement")):
            movement = self._moved(window, "", self.LATELY, self.REFERENCE, gauge)
            if movement is not None and sign * movement[0] > self.ROSE:
                symptoms.setdefault(named, 0.5)
        value = {j: round(s + freed * s / rest, 4) if j != judge else round(s - freed, 4) for j, s in shares.items()}
        most = max(value, key=lambda name: value[name])
        value[most] += 1 - math.fsum(value.values())
        why += f": {judge} keeps {value[judge]:.0%} of the weight instead of {shares[judge]:.0%}"
        gain = -0.03 if metric.better == "down" else 0.03

        def plan(remedy: str, changes: dict[str, Value]) -> Plan:
            return Plan.of_changes(
                window, remedy, changes, confidence=self.SURE if back is None else self.APART, why=why,
                target=metric.name, expected_change=gain, horizon=60,
            )  # fmt: skip

        plans = [plan("reweigh_rewards", {WEIGHTS: value})]
        if back is not None and ROLLBACK in window.knobs:
            plans.insert(0, plan("rollback_and_reweigh", {ROLLBACK: float(max(0, back)), WEIGHTS: value}))
        return offer(plans, symptoms)

    def _moved(
        self, window: Window, judge: str, lately: int, reference: int, gauge: str = ""
    ) -> tuple[float, float] | None:
        """Return (standard errors, difference) of its newest values against the earlier ones since the last change that
        moves them. None if too little was measured."""
        since = window.last_change_tick(WEIGHTS, "committee.*", ROLLBACK, MIXTURE)
        values = window.series(gauge or f"rewards/{judge}/mean", after=since, last=lately + reference)
        shift = newest(values, lately)
        if len(shift.before) < min(reference, 2 * lately) or not all(map(math.isfinite, values)):
            return None
        return shift.of_means / shift.error(max(shift.noise, LEAST_NOISE)), shift.of_means

    def _jump(self, window: Window, judge: str) -> tuple[float, float] | None:
        """Return (standard errors, difference) between the newest values and as many just before them. Learning moves
        little in that time, so a trend is not a jump. Zero if they overlap with those of twice that time."""
        since = window.last_change_tick(WEIGHTS, "committee.*", ROLLBACK, MIXTURE)
        values = window.series(f"rewards/{judge}/mean", after=since, last=self.NOW + self.BEFORE)
        if len(values) < self.NOW + self.BEFORE or not all(map(math.isfinite, values)):
            return None
        before, now = values[-3 * self.NOW : -self.NOW], values[-self.NOW :]
        if min(now) <= max(before) and max(now) >= min(before):
            return 0.0, 0.0
        shift = Shift(before[self.NOW :], now)
        return shift.of_means / shift.error(max(noise(values[: -self.NOW]), LEAST_NOISE)), shift.of_means

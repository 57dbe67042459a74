"""Detects a collapse of a policy's entropy, and constant rewards or stated confidences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats import symptoms
from oven_agents.stats.confidence import FIRM_CONFIDENCE, TENTATIVE_CONFIDENCE
from oven_agents.stats.health import policy_health
from oven_agents.stats.level_shift import standardised_rise
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.reviews import review_change
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

LR_SCALE, BETA, ROLLBACK = "optimizer.lr_scale", "grpo.beta", "run.rollback"
LAMBDA, ENTROPY = "reward.calibration", "entropy"
LEVEL_PREFIX = "reward/"
"""Prefix of the rewards of the curriculum's levels."""


class EntropyCollapse(Agent):
    """Signals: there are three. First, the policy's entropy, or the standard deviation of its stated confidence, falls
    to half within twenty steps while the objective does not rise. A policy that learns trades entropy for reward (Cui
    et al. 2025, arXiv 2505.22617: R = −a·exp(H) + b). Second, rewards vary within groups far less than by chance, which
    would be √(p(1 − p)) at the level's success rate p. The variation is far too low if its share of this chance level
    is below QUIET_SHARE and has more than halved. Third, confidences or advantages are all alike from the start, or
    rewards are equal within every group for 15 ticks (oven_agents.stats.symptoms).

    Actions: raises alerts while the third signal persists. Against a constant confidence, the agent offers more weight
    for the calibration term in the reward (λ), which rewards honest confidence. Against the first signal, it offers
    three plans. The first is a rollback to before the fall at half the rate. The second is more weight for the
    reference model, which still has entropy. The third is a rollback alone. The agent is more confident if the
    second signal is present, too.

    False alarms: entropy readings vary by a few per cent from step to step, so a fall to half is more than ten standard
    errors. The objective counts as rising only beyond 2 standard errors.

    Limits: rewards must be between 0 and 1. At a ceiling (p near 1), the first two signals are signs of success, and
    the agent is silent. A rollback does not remove the cause of the collapse unless the cause was the rate.
    """

    reads = (ENTROPY, symptoms.CONFIDENCE_STD)
    moves = (ROLLBACK, LR_SCALE, BETA, LAMBDA)
    options = dict.fromkeys(
        ("collapsed_share", "quiet_share", "solved_level", "confidence_of_both", "confidence_of_one"), SHARE_BOUNDS
    )

    LEVEL_TICKS = 5
    """Number of newest ticks whose median is a gauge's level. With fewer, a single step would decide."""
    COLLAPSE_TICKS = 20
    """Number of ticks within which a gauge must collapse, and by which to roll back. Learning lowers it more slowly."""
    COLLAPSED_SHARE = 0.5
    """Share of its earlier level below which a gauge has collapsed."""
    QUIET_SHARE = 0.35
    """Rewards within groups are nearly constant if their standard deviation is below this share, 0 to 1, of the one
    expected by chance. A higher value would mistake prompts with similar answers for a collapse."""
    SOLVED_LEVEL = 0.9
    """Mean objective above which little spread is a sign of success, and the agent is silent."""
    CONFIDENCE_OF_BOTH = FIRM_CONFIDENCE
    """Confidence of a proposal if both the first and the second signal are present, or if the policy always states the
    same confidence."""
    MIN_LAMBDA = 0.1
    """Minimum λ, 0 to 1, after a raise, because multiplying 0 changes nothing."""
    CONFIDENCE_OF_ONE = TENTATIVE_CONFIDENCE
    """Confidence with the first signal alone. This is a rule of thumb."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        gauges = (ENTROPY, symptoms.CONFIDENCE_STD, symptoms.ADVANTAGE_STD, symptoms.EQUAL_GROUPS, symptoms.REWARD_STD)
        if not published.intersection(gauges):
            return f"the run publishes none of {', '.join(gauges)}"
        if "reward" not in published:
            return "the run publishes no reward, and without one a falling entropy is a sign of learning"
        return None

    def vote(self, window: Window) -> Alternatives | None:
        return self._treat_collapse(window) or self._treat_constant_confidence(window)

    def can_review(self, run: RunStarted) -> bool:
        return any(metric.name == ENTROPY for metric in run.metrics)

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        return review_change(ballot, window, policy_health)

    def alerts(self, window: Window) -> Sequence[Alert]:
        equal = symptoms.equal_rewards_sighting(window) or symptoms.advantage_sighting(window)
        return symptoms.as_alerts(window, symptoms.confidence_sighting(window), equal)

    def _treat_constant_confidence(self, window: Window) -> Alternatives | None:
        """Propose a larger λ if stated confidences are constant. There was no fall that a rollback could undo."""
        knob, since = window.knobs.get(LAMBDA), window.last_change_tick(ROLLBACK, LR_SCALE, BETA, LAMBDA)
        if knob is None or held_out_metric(window.run) is None:
            return None
        if since >= 0 and window.tick < since + self.COLLAPSE_TICKS:
            return None
        sighting = symptoms.confidence_sighting(window)
        raised = knob.bounded(max(2 * knob.number, self.MIN_LAMBDA))
        if sighting is None or raised <= knob.number:
            return None
        plans = [("raise_calibration", {LAMBDA: raised})]
        return self._offer_plans(window, sighting.why, self.CONFIDENCE_OF_BOTH, {"confidence_collapse": 0.8}, plans)

    def _treat_collapse(self, window: Window) -> Alternatives | None:
        """Offer remedies if the entropy, or the spread of stated confidences, fell without a gain."""
        since = window.last_change_tick(
            ROLLBACK, LR_SCALE, BETA, "teacher.active", "data.mixture", "reward.weights", "committee.*"
        )
        target = objective(window.run)
        count = self.LEVEL_TICKS + self.COLLAPSE_TICKS
        points = window.surviving_series(target.name, after=since, last=count)
        values = [apply_sign(target, value) for _, value in points]
        if len(values) < count or not all(map(math.isfinite, values)):
            return None
        if standardised_rise(values, self.LEVEL_TICKS) > 2 or fmean(values[-self.LEVEL_TICKS :]) > self.SOLVED_LEVEL:
            return None
        gauge, fall = ENTROPY, self._measure_fall(window, ENTROPY, since)
        if fall is None:
            gauge, fall = symptoms.CONFIDENCE_STD, self._measure_fall(window, symptoms.CONFIDENCE_STD, since)
        if fall is None:
            return None
        old, new = fall
        change = f"fell from {old:.3g} to {new:.3g} within {self.COLLAPSE_TICKS} steps"
        why = f"{gauge} {change}, and {target.name} did not rise"
        old_share, new_share = self._shares_of_chance(window, since) or (0.0, math.inf)
        is_quiet = new_share < self.QUIET_SHARE and new_share < self.COLLAPSED_SHARE * old_share
        if is_quiet:
            shares = f"{old_share:.0%} to {new_share:.0%} of its chance level"
            why += f"; the spread of rewards within groups fell from {shares}"
        confidence = self.CONFIDENCE_OF_BOTH if is_quiet else self.CONFIDENCE_OF_ONE
        return self._offer_remedies(window, why, confidence, gauge, is_quiet)

    def _measure_fall(self, window: Window, gauge: str, since: int) -> tuple[float, float] | None:
        """Return the old and new median of a gauge that has collapsed, otherwise None."""
        count = self.LEVEL_TICKS + self.COLLAPSE_TICKS
        values = [value for _, value in window.surviving_series(gauge, after=since, last=count)]
        if len(values) < count or not all(map(math.isfinite, values)):
            return None
        old, new = median(values[: self.LEVEL_TICKS]), median(values[-self.LEVEL_TICKS :])
        return (old, new) if 0 <= new < self.COLLAPSED_SHARE * old else None

    def _shares_of_chance(self, window: Window, since: int) -> tuple[float, float] | None:
        """Return the old and the new standard deviation of rewards within groups, each divided by the one expected by
        chance. Return None if there are too few measurements."""
        shares = []
        for observation in window.observations[-self.LEVEL_TICKS - self.COLLAPSE_TICKS :]:
            rewards = [value for name, value in observation.metrics.items() if name.startswith(LEVEL_PREFIX)]
            rates = [reward for reward in rewards if 0 <= reward <= 1]
            deviation = observation.metrics.get(symptoms.REWARD_STD)
            chance_deviation = fmean(math.sqrt(p * (1 - p)) for p in rates) if rates else 0.0
            if deviation is not None and chance_deviation > 0.1 and observation.tick > since:
                shares.append(deviation / chance_deviation)
        if len(shares) < 2 * self.LEVEL_TICKS:
            return None
        return median(shares[: self.LEVEL_TICKS]), median(shares[-self.LEVEL_TICKS :])

    def _offer_remedies(
        self, window: Window, why: str, confidence: float, gauge: str, is_quiet: bool
    ) -> Alternatives | None:
        knobs = window.knobs
        rollback_tick = float(max(0, window.tick - self.COLLAPSE_TICKS))
        plans: list[tuple[str, dict[str, float]]] = []
        if ROLLBACK in knobs and LR_SCALE in knobs:
            halved = knobs[LR_SCALE].bounded(knobs[LR_SCALE].number / 2)
            plans.append(("rollback_and_cut", {ROLLBACK: rollback_tick, LR_SCALE: halved}))
        if BETA in knobs:
            raised = knobs[BETA].bounded(max(2 * knobs[BETA].number, 0.05))
            plans.append(("raise_beta", {BETA: raised}))
        if ROLLBACK in knobs:
            plans.append(("rollback", {ROLLBACK: rollback_tick}))
        symptom = "confidence_collapse" if gauge == symptoms.CONFIDENCE_STD else "entropy_collapse"
        severities = {symptom: 0.8}
        if is_quiet:
            severities["zero_advantage_groups"] = 0.5
        return self._offer_plans(window, why, confidence, severities, plans)

    def _offer_plans(
        self,
        window: Window,
        why: str,
        confidence: float,
        severities: Mapping[str, float],
        plans: Sequence[tuple[str, Mapping[str, float]]],
    ) -> Alternatives | None:
        target = held_out_metric(window.run) or objective(window.run)
        offered_plans = [
            Plan.of_numbers(
                window, remedy, changes, confidence=confidence, why=why, target=target.name,
                expected_change=apply_sign(target, 0.03), horizon=60,
            )
            for remedy, changes in plans
        ]  # fmt: skip
        return offer(offered_plans, severities)

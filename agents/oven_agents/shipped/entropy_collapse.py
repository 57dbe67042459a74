"""Detects a collapse of a policy's entropy, and constant rewards or stated confidences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import SOLO_CONFIDENCE, TENTATIVE_CONFIDENCE
from oven_agents.stats.level_shift import rise
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_agents.stats.symptoms import (
    ADVANTAGE,
    EQUAL_GROUPS,
    SPREAD,
    advantage_sighting,
    as_alerts,
    confidence_sighting,
    equal_rewards_sighting,
)
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import RunStarted

SCALE, BETA, ROLLBACK = "optimizer.lr_scale", "grpo.beta", "run.rollback"
LAMBDA = "reward.calibration"
ENTROPY, CONFIDENCE = "entropy", "confidence/std"
LEVELS = "reward/"


class EntropyCollapse(Agent):
    """Signals: the policy's entropy, or the standard deviation of its stated confidence, falls to half within twenty
    steps while the objective does not rise. A policy that learns trades entropy for reward (Cui et al. 2025, arXiv
    2505.22617: R = −a·exp(H) + b). Second, rewards vary within groups far less than by chance, which is √(p(1 − p)) at
    the level's rate p. Below QUIET_SHARE of it, and below half of its earlier value, groups are nearly constant. Third,
    confidences or advantages are all alike from the start, or rewards are equal within every group for 15 ticks
    (oven_agents.stats.symptoms).

    Actions: raises alerts while the third signal persists. Against a constant confidence, it offers more weight for the
    calibration term in the reward (λ), which rewards honest confidence. With both of the first two signals, it is
    confident enough to act alone. It offers three plans: a rollback to before the spread was lost, at half the rate;
    more weight for the reference model, which still has entropy; or a rollback alone.

    False alarms: entropies have a noise of a few per cent, so a fall to half is more than ten of its standard errors.
    The objective's rise is compared with 2 standard errors.

    Limits: rewards must be between 0 and 1. At a ceiling (p near 1) both signals are signs of success, and the agent is
    silent. The cause of the collapse continues after a rollback unless it was the rate.
    """

    moves = (ROLLBACK, SCALE, BETA, LAMBDA)
    speciality = (ROLLBACK, SCALE, BETA, LAMBDA)
    options = dict.fromkeys(
        ("collapsed_share", "quiet_share", "solved_level", "confidence_of_both", "confidence_of_one"), SHARE
    )

    LEVEL_TICKS = 5
    """Number of newest ticks for the median spread. With fewer, a single step decides. More would take longer."""
    COLLAPSE_TICKS = 20
    """Number of ticks within which a spread must collapse, and by which to roll back. Learning is slower."""
    COLLAPSED_SHARE = 0.5
    """Share of its earlier value below which a spread has collapsed. This is over ten standard errors of an entropy."""
    QUIET_SHARE = 0.35
    """Share of the standard deviation by chance, 0 to 1, below which rewards within groups are nearly constant. The
    value was not tuned. Higher values mistake prompts with similar answers for a collapse."""
    SOLVED_LEVEL = 0.9
    """Mean objective above which little spread is a sign of success, and the agent is silent."""
    CONFIDENCE_OF_BOTH = SOLO_CONFIDENCE
    """Confidence with both signals, just enough to act alone by default."""
    MIN_LAMBDA = 0.1
    """Minimum λ, 0 to 1, after a raise, because multiplying 0 changes nothing."""
    CONFIDENCE_OF_ONE = TENTATIVE_CONFIDENCE
    """Confidence with a collapsed spread alone. This is a rule of thumb, which needs a second agent."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        gauges = (ENTROPY, CONFIDENCE, ADVANTAGE, EQUAL_GROUPS, SPREAD)
        if not published.intersection(gauges):
            return f"the run publishes none of {', '.join(gauges)}"
        if "reward" not in published:
            return "the run publishes no reward, and without one a falling entropy is a sign of learning"
        return None

    def vote(self, window: Window) -> Alternatives | None:
        return self._treat_collapse(window) or self._treat_constant_confidence(window)

    def alerts(self, window: Window) -> Sequence[Alert]:
        equal = equal_rewards_sighting(window) or advantage_sighting(window)
        return as_alerts(window, confidence_sighting(window), equal)

    def _treat_constant_confidence(self, window: Window) -> Alternatives | None:
        """Raise λ if stated confidences are constant. There was no fall that a rollback could undo."""
        knob, since = window.knobs.get(LAMBDA), window.last_change_tick(ROLLBACK, SCALE, BETA, LAMBDA)
        if knob is None or held_out_metric(window.run) is None:
            return None
        if since >= 0 and window.tick < since + self.COLLAPSE_TICKS:
            return None
        sighting = confidence_sighting(window)
        raised = knob.bounded(max(2 * knob.number, self.MIN_LAMBDA))
        if sighting is None or raised <= knob.number:
            return None
        return self._offer_plans(
            window,
            sighting.why,
            self.CONFIDENCE_OF_BOTH,
            {"confidence_collapse": 0.8},
            [("raise_calibration", {LAMBDA: raised})],
        )

    def _treat_collapse(self, window: Window) -> Alternatives | None:
        since = window.last_change_tick(
            ROLLBACK, SCALE, BETA, "teacher.active", "data.mixture", "reward.weights", "committee.*"
        )
        target = objective(window.run)
        values = [
            apply_sign(target, 1) * v
            for _, v in window.surviving_series(target.name, after=since, last=self.LEVEL_TICKS + self.COLLAPSE_TICKS)
        ]
        if len(values) < self.LEVEL_TICKS + self.COLLAPSE_TICKS or not all(map(math.isfinite, values)):
            return None
        if rise(values, self.LEVEL_TICKS) > 2 or fmean(values[-self.LEVEL_TICKS :]) > self.SOLVED_LEVEL:
            return None
        falls = {gauge: self._measure_fall(window, gauge, since) for gauge in (ENTROPY, CONFIDENCE)}
        gauge, fall = next(((gauge, fall) for gauge, fall in falls.items() if fall is not None), ("", None))
        if fall is None:
            return None
        old, new = fall
        share = self._share_of_chance(window, since)
        is_quiet = share is not None and share[1] < self.QUIET_SHARE and share[1] < self.COLLAPSED_SHARE * share[0]
        why = (
            f"{gauge} fell from {old:.3g} to {new:.3g} within {self.COLLAPSE_TICKS} steps, and {target.name} did not "
            "rise"
        )
        if is_quiet and share is not None:
            why += (
                f"; the spread of rewards within groups fell from {share[0]:.0%} to {share[1]:.0%} of its chance level"
            )
        return self._offer_remedies(
            window, why, self.CONFIDENCE_OF_BOTH if is_quiet else self.CONFIDENCE_OF_ONE, gauge, is_quiet
        )

    def _measure_fall(self, window: Window, gauge: str, since: int) -> tuple[float, float] | None:
        """Return the old and new median of a gauge that has collapsed, otherwise None."""
        values = [
            v for _, v in window.surviving_series(gauge, after=since, last=self.LEVEL_TICKS + self.COLLAPSE_TICKS)
        ]
        if len(values) < self.LEVEL_TICKS + self.COLLAPSE_TICKS or not all(map(math.isfinite, values)):
            return None
        old, new = median(values[: self.LEVEL_TICKS]), median(values[-self.LEVEL_TICKS :])
        return (old, new) if 0 <= new < self.COLLAPSED_SHARE * old else None

    def _share_of_chance(self, window: Window, since: int) -> tuple[float, float] | None:
        """Return the old and new standard deviation of rewards within groups, each relative to chance."""
        shares = []
        for observation in window.observations[-self.LEVEL_TICKS - self.COLLAPSE_TICKS :]:
            rates = [v for name, v in observation.metrics.items() if name.startswith(LEVELS) and 0 <= v <= 1]
            spread = observation.metrics.get(SPREAD)
            chance = fmean(math.sqrt(p * (1 - p)) for p in rates) if rates else 0.0
            if spread is not None and chance > 0.1 and observation.tick > since:
                shares.append(spread / chance)
        if len(shares) < 2 * self.LEVEL_TICKS:
            return None
        return median(shares[: self.LEVEL_TICKS]), median(shares[-self.LEVEL_TICKS :])

    def _offer_remedies(
        self, window: Window, why: str, confidence: float, gauge: str, is_quiet: bool
    ) -> Alternatives | None:
        knobs = window.knobs
        rollback_tick = float(max(0, window.tick - self.COLLAPSE_TICKS))
        plans: list[tuple[str, dict[str, float]]] = []
        if ROLLBACK in knobs and SCALE in knobs:
            halved = knobs[SCALE].bounded(knobs[SCALE].number / 2)
            plans.append(("rollback_and_cut", {ROLLBACK: rollback_tick, SCALE: halved}))
        if BETA in knobs:
            raised = knobs[BETA].bounded(max(2 * knobs[BETA].number, 0.05))
            plans.append(("raise_beta", {BETA: raised}))
        if ROLLBACK in knobs:
            plans.append(("rollback", {ROLLBACK: rollback_tick}))
        symptoms = {"confidence_collapse" if gauge == CONFIDENCE else "entropy_collapse": 0.8}
        return self._offer_plans(
            window, why, confidence, symptoms | ({"zero_advantage_groups": 0.5} if is_quiet else {}), plans
        )

    def _offer_plans(
        self,
        window: Window,
        why: str,
        confidence: float,
        symptoms: Mapping[str, float],
        plans: Sequence[tuple[str, Mapping[str, float]]],
    ) -> Alternatives | None:
        target = held_out_metric(window.run) or objective(window.run)
        change = apply_sign(target, 0.03)
        offered_plans = [
            Plan.of_votes(
                remedy,
                [
                    window.propose(
                        name, value, confidence=confidence, why=f"{why}; {name} → {value:.3g}", target=target.name,
                        expected_change=change, horizon=60,
                    )
                    for name, value in changes.items()
                ],
            )
            for remedy, changes in plans
        ]  # fmt: skip
        return offer(offered_plans, symptoms)

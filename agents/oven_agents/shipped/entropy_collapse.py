"""Detects collapsed entropy in a policy, and constant rewards or stated confidences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import NEEDS_SECOND, STANDS_ALONE
from oven_agents.stats.level_shift import rise
from oven_agents.stats.objective import held_out, objective, signed
from oven_agents.stats.symptoms import (
    ADVANTAGE,
    EQUAL_GROUPS,
    SPREAD,
    advantage_sighting,
    confidence_sighting,
    equal_rewards_sighting,
    sighted,
)
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import RunStarted

SCALE, BETA, ROLLBACK = "optimizer.lr_scale", "grpo.beta", "run.rollback"
LAMBDA = "reward.calibration"
ENTROPY, CONFIDENCE = "entropy", "confidence/std"
LEVELS = "reward/"


class EntropyCollapse(Agent):
    """Signals: the policy's entropy, or the standard deviation of its stated confidence, falls to half within twenty
    steps while the objective does not rise: a policy that learns pays for reward with entropy (Cui et al. 2025, arXiv
    2505.22617: R = −a·exp(H) + b). Rewards that vary within groups far less than chance, √(p(1 − p)) at the level's
    rate p: below QUIET of it, and below half of its earlier value, groups are nearly constant. Confidences, or
    advantages, that are all alike from the start, and rewards that are equal within every group for 15 ticks
    (oven_agents.stats.symptoms).

    Actions: raises alerts for the last three as long as they last. Against a constant confidence it offers more weight
    for the calibration term in the reward (λ), which rewards honest confidence. With both signs it is confident enough
    to act alone. It offers to go back to before the spread was lost, at half the rate; more weight for the reference
    model, which has entropy left; or a rollback alone.

    False alarms: entropies have a noise of a few per cent, so a half is beyond ten of its standard errors. The
    objective's rise is compared with 2 standard errors.

    Limits: rewards must be between 0 and 1. At a ceiling (p near 1) both signs are what success looks like, and the
    agent is silent. The cause of the collapse continues after a rollback unless it was the rate.
    """

    moves = (ROLLBACK, SCALE, BETA, LAMBDA)
    speciality = (ROLLBACK, SCALE, BETA, LAMBDA)
    options = dict.fromkeys(("collapsed", "quiet", "certain", "both", "one"), SHARE)

    NOW = 5
    """Newest ticks for the median spread. With fewer, a single step decides; with more, a collapse is seen later."""
    BEFORE = 20
    """Ticks within which a spread must collapse, and by which it goes back. A policy learns by a slower loss of
    entropy."""
    COLLAPSED = 0.5
    """Share of its earlier value below which a spread has collapsed: beyond ten standard errors of an entropy."""
    QUIET = 0.35
    """Share of chance's standard deviation, 0 to 1, below which rewards within groups are nearly constant. No
    measurement is recorded: higher values mistake prompts with similar answers for a collapse."""
    CERTAIN = 0.9
    """Mean objective above which little spread is what success looks like, and the agent is silent."""
    BOTH = STANDS_ALONE
    """Confidence with both signs: just enough to stand alone by default."""
    LEAST_LAMBDA = 0.1
    """Smallest λ, 0 to 1, after a raise: no factor raises 0."""
    ONE = NEEDS_SECOND
    """Confidence with a collapsed spread alone: a rule of thumb, which needs a second agent."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        published = {metric.name for metric in run.metrics}
        gauges = (ENTROPY, CONFIDENCE, ADVANTAGE, EQUAL_GROUPS, SPREAD)
        if not published.intersection(gauges):
            return f"the run publishes none of {', '.join(gauges)}"
        if "reward" not in published:
            return "the run publishes no reward: an entropy that falls is what learning looks like"
        return None

    def vote(self, window: Window) -> Alternatives | None:
        return self._collapsed(window) or self._constant(window)

    def alerts(self, window: Window) -> Sequence[Alert]:
        equal = equal_rewards_sighting(window) or advantage_sighting(window)
        return sighted(window, confidence_sighting(window), equal)

    def _constant(self, window: Window) -> Alternatives | None:
        """Act on stated confidences that tell nothing apart, without a fall that a rollback could undo."""
        knob, since = window.knobs.get(LAMBDA), window.last_change_tick(ROLLBACK, SCALE, BETA, LAMBDA)
        if knob is None or held_out(window.run) is None or (since >= 0 and window.tick < since + self.BEFORE):
            return None
        sighting = confidence_sighting(window)
        raised = knob.bounded(max(2 * knob.number, self.LEAST_LAMBDA))
        if sighting is None or raised <= knob.number:
            return None
        return self._offered(
            window, sighting.why, self.BOTH, {"confidence_collapse": 0.8}, [("raise_calibration", {LAMBDA: raised})]
        )

    def _collapsed(self, window: Window) -> Alternatives | None:
        since = window.last_change_tick(
            ROLLBACK, SCALE, BETA, "teacher.active", "data.mixture", "reward.weights", "committee.*"
        )
        target = objective(window.run)
        values = [
            signed(target, 1) * v
            for _, v in window.surviving_series(target.name, after=since, last=self.NOW + self.BEFORE)
        ]
        if len(values) < self.NOW + self.BEFORE or not all(map(math.isfinite, values)):
            return None
        if rise(values, self.NOW) > 2 or fmean(values[-self.NOW :]) > self.CERTAIN:
            return None
        lost = [
            (gauge, was, now)
            for gauge in (ENTROPY, CONFIDENCE)
            if (fell := self._fell(window, gauge, since)) is not None
            for was, now in [fell]
        ]
        if not lost:
            return None
        gauge, was, now = lost[0]
        share = self._share_of_chance(window, since)
        quiet = share is not None and share[1] < self.QUIET and share[1] < self.COLLAPSED * share[0]
        why = f"{gauge} fell from {was:.3g} to {now:.3g} within {self.BEFORE} steps, and {target.name} did not rise"
        if quiet and share is not None:
            why += (
                f"; within groups rewards vary {share[1]:.0%} as much as chance would have them, {share[0]:.0%} before"
            )
        return self._offer(window, why, self.BOTH if quiet else self.ONE, gauge, quiet)

    def _fell(self, window: Window, gauge: str, since: int) -> tuple[float, float] | None:
        values = [v for _, v in window.surviving_series(gauge, after=since, last=self.NOW + self.BEFORE)]
        if len(values) < self.NOW + self.BEFORE or not all(map(math.isfinite, values)):
            return None
        was, now = median(values[: self.NOW]), median(values[-self.NOW :])
        return (was, now) if 0 <= now < self.COLLAPSED * was else None

    def _share_of_chance(self, window: Window, since: int) -> tuple[float, float] | None:
        """Return the standard deviation of the rewards within groups divided by that of chance: before and now."""
        shares = []
        for observation in window.observations[-self.NOW - self.BEFORE :]:
            rates = [v for name, v in observation.metrics.items() if name.startswith(LEVELS) and 0 <= v <= 1]
            spread = observation.metrics.get(SPREAD)
            chance = fmean(math.sqrt(p * (1 - p)) for p in rates) if rates else 0.0
            if spread is not None and chance > 0.1 and observation.tick > since:
                shares.append(spread / chance)
        if len(shares) < 2 * self.NOW:
            return None
        return median(shares[: self.NOW]), median(shares[-self.NOW :])

    def _offer(self, window: Window, why: str, confidence: float, gauge: str, quiet: bool) -> Alternatives | None:
        knobs = window.knobs
        back = float(max(0, window.tick - self.BEFORE))
        plans: list[tuple[str, dict[str, float]]] = []
        if ROLLBACK in knobs and SCALE in knobs:
            halved = knobs[SCALE].bounded(knobs[SCALE].number / 2)
            plans.append(("rollback_and_cut", {ROLLBACK: back, SCALE: halved}))
        if BETA in knobs:
            raised = knobs[BETA].bounded(max(2 * knobs[BETA].number, 0.05))
            plans.append(("raise_beta", {BETA: raised}))
        if ROLLBACK in knobs:
            plans.append(("rollback", {ROLLBACK: back}))
        symptoms = {"confidence_collapse" if gauge == CONFIDENCE else "entropy_collapse": 0.8}
        return self._offered(
            window, why, confidence, symptoms | ({"zero_advantage_groups": 0.5} if quiet else {}), plans
        )

    def _offered(
        self,
        window: Window,
        why: str,
        confidence: float,
        symptoms: Mapping[str, float],
        plans: Sequence[tuple[str, Mapping[str, float]]],
    ) -> Alternatives | None:
        target = held_out(window.run) or objective(window.run)

        change = signed(target, 0.03)
        offered = [
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
        return offer(offered, symptoms)

"""Keeps every difficulty level that the policy can still learn in the data mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import TopicShares
from oven_agents.sdk.window import Window
from oven_core.protocol.graph_requests import CurriculumRequest, Mastery
from oven_core.protocol.messages import RunStarted

MIXTURE, ROLLBACK = "data.mixture", "run.rollback"


class Curriculum(Agent):
    """Signals: a level that is not mastered and whose share of the mixture is less than half of an even share. Shifting
    mass between levels that all have some did not beat an even mixture on this task.

    Actions: proposes shares proportional to p(1 − p), with p the level's recent reward. That is the variance of a
    Bernoulli reward, from which a group-relative advantage learns (learnability: Rutherford et al. 2024, arXiv
    2408.15099). An unknown level counts as p = ½. Every level keeps a floor, so that forgetting is seen. A level whose
    prerequisite still fails gets only its floor, because skills are learnt in an order (Skill-it, Chen et al. 2023,
    arXiv 2307.14430). The agent looks up prerequisites in the knowledge graph by the levels' names. If it knows none or
    does not answer, each level is a prerequisite of the next in the announced order, and the vote says so.

    False alarms: a level fails only if the lower confidence bound of its reward (Wilson 1927, one-sided 90 %, one trial
    per tick) is below READY. An unknown level blocks nothing.

    Limits: a level's reward is read as a success rate, which a reward with parts overstates. A tick counts as one trial
    regardless of its number of completions, so the bound is too low rather than too high.
    """

    needs = ("reward/*",)
    moves = (MIXTURE,)
    speciality = (MIXTURE,)
    options = dict.fromkeys(("floor", "mastered", "ready", "sure", "least_move"), SHARE)

    RECENT = 10
    """Newest ticks for the median of a level's reward. More would describe an earlier policy."""
    LEAST = 5
    """Ticks with a reward since the last change or rollback. One tick after a rollback shows the collapsed policy."""
    WAIT = 15
    """Ticks after a change of the mixture without another one, so that the last one can show its effect."""
    FLOOR = 0.1
    """Share of the mixture that each level keeps, so that forgetting is seen."""
    MASTERED = 0.95
    """Reward, 0 to 1, from which a level is mastered and may have any share; p(1 − p) is below 0.05 there."""
    READY = 0.05
    """Lower bound of a level's reward, 0 to 1, from which the next level opens. A closed level learns nothing."""
    SURE = 0.8
    """Confidence of its proposals: enough to decide alone. No success rate is recorded."""
    LEAST_MOVE = 0.1
    """Share of the mixture that a proposal must move. Less would not show in the rewards."""
    TAIL = 1.2816
    """The 90 % quantile of a standard normal law, for Wilson's one-sided bound."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        mixture = next((spec for spec in run.actuators if spec.name == MIXTURE), None)
        if mixture is None:
            return f"the run announces no {MIXTURE}: give oven.attach(trainer, mixture=…) one part for each level"
        published = {metric.name for metric in run.metrics}
        silent = [level for level in mixture.choices if f"reward/{level}" not in published]
        if silent:
            first = f"reward/{silent[0]}"
            return (
                f"the run publishes no reward by level for {', '.join(silent)}: announce {first} with "
                f"oven.attach(trainer, metrics=…) and log it from the reward function (log_metric({first!r}, …))"
            )
        return super().cannot_fire(run)

    def vote(self, window: Window) -> TopicShares | None:
        shares = window.knobs[MIXTURE].shares
        changed = window.last_change_tick(MIXTURE)
        if changed >= 0 and window.tick < changed + self.WAIT:
            return None
        # Rewards from before a rollback say nothing about the restored policy.
        since = max(changed, window.last_change_tick(ROLLBACK))
        if len(window.series("reward", after=since)) < self.LEAST:
            return None
        passed = {level: window.series(f"reward/{level}", after=since, last=self.RECENT) for level in shares}
        rate = {level: median(values) if len(values) >= 3 else 0.5 for level, values in passed.items()}
        even = 1 / len(shares)
        starved = [name for name, share in shares.items() if share < even / 2 and rate[name] < self.MASTERED]
        if not starved:
            return None
        open_ = self._open(passed)
        known = ", ".join(
            f"{level} {rate[level]:.2f}" if len(passed[level]) >= 3 else f"{level} unseen" for level in shares
        )
        why = (
            f"{', '.join(f'{level} gets {shares[level]:.0%}' for level in starved)}, under half of an even share; "
            f"reward by level {known}"
        )
        vote = window.propose(
            MIXTURE,
            shares,
            confidence=self.SURE,
            why=why,
            target="eval/accuracy",
            expected_change=0.05,
            horizon=40,
            evidence=("symptom:starved_level",),
        )
        return TopicShares(
            vote,
            shares=shares,
            learnable={level: rate[level] * (1 - rate[level]) for level in shares},
            waiting=frozenset(level for level in shares if not open_[level]),
            floor=self.FLOOR,
            first=starved[0],
            least=self.LEAST_MOVE,
            question=CurriculumRequest(
                mastery=tuple(_mastery(level, values) for level, values in passed.items()), threshold=self.READY
            ),
        )

    def _open(self, passed: dict[str, list[float]]) -> dict[str, bool]:
        """Return for each level whether its prerequisite, and that level's own, is met."""
        opened, met = {}, True
        for level, values in passed.items():
            opened[level] = met
            met = met and (len(values) < 3 or self._bound(fmean(values), len(values)) >= self.READY)
        return opened

    def _bound(self, rate: float, trials: int) -> float:
        """Return Wilson's lower bound of a success rate."""
        z2 = self.TAIL**2
        rate = min(1.0, max(0.0, rate))
        margin = self.TAIL * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials**2))
        return (rate + z2 / (2 * trials) - margin) / (1 + z2 / trials)


def _mastery(level: str, values: Sequence[float]) -> Mastery:
    """Return a level's mastery as trials, one per tick."""
    rate = min(1.0, max(0.0, fmean(values))) if len(values) >= 3 else 0.0
    trials = len(values) if len(values) >= 3 else 0
    return Mastery(topic=level, successes=rate * trials, failures=(1 - rate) * trials)

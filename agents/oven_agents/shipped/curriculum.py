"""Sets the shares of difficulty levels in the data mixture, so that no level that can still be learnt is starved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import TopicShares
from oven_agents.sdk.window import Window
from oven_core.protocol.graph_requests import CurriculumRequest, Mastery
from oven_core.protocol.messages import RunStarted

MIXTURE, ROLLBACK = "data.mixture", "run.rollback"
MIN_REWARDS = 3
"""Minimum number of a level's rewards. With fewer, the level counts as not measured."""


class Curriculum(Agent):
    """Signals: a level is not mastered, and its share of the mixture is less than half of an even share. Fine-tuning
    the shares beyond that was no better than an even mixture in experiments.

    Actions: proposes shares proportional to p(1 − p), where p is the level's recent reward. This is the variance of a
    Bernoulli reward, from which a group-relative advantage learns (learnability: Rutherford et al. 2024, arXiv
    2408.15099). For a level without measurements, p is ½. Every level keeps a minimum share, so that forgetting shows.
    A level whose prerequisite still fails gets only this minimum, because skills build on one another (Skill-it, Chen
    et al. 2023, arXiv 2307.14430). The agent looks up prerequisites in the knowledge graph by the levels' names. If the
    graph has none or does not answer, each level is a prerequisite of the next in the announced order, and the vote
    states this.

    False alarms: a level fails only if the lower confidence bound of its reward (Wilson 1927, one-sided 90 %, one trial
    per tick) is below MIN_PREREQUISITE_REWARD. A level without measurements blocks no other level.

    Limits: a level's reward is used as a success rate, which overstates the success if the reward has several parts. A
    tick counts as one trial regardless of its number of completions, so the bound is too low rather than too high.
    """

    needs = ("reward/*",)
    reads = (MIXTURE, "reward/*")
    moves = (MIXTURE,)
    options = dict.fromkeys(
        ("floor", "mastered_reward", "min_prerequisite_reward", "confidence", "min_move"), SHARE_BOUNDS
    )

    RECENT = 10
    """Number of newest ticks for the median of a level's reward. More would describe an earlier policy."""
    MIN_TICKS = 5
    """Minimum number of ticks with a reward since the last change. A rollback's first tick still shows the collapse."""
    WAIT_TICKS = 15
    """Number of ticks to wait after a change of the mixture, so that its effect can show."""
    FLOOR = 0.1
    """Minimum share of the mixture for each level, so that forgetting shows."""
    MASTERED_REWARD = 0.95
    """Minimum reward, 0 to 1, of a mastered level, which may have any share."""
    MIN_PREREQUISITE_REWARD = 0.05
    """Minimum lower confidence bound of a level's reward, 0 to 1, that opens the next level."""
    CONFIDENCE = 0.8
    """Confidence of the proposals. The success rate was not measured."""
    MIN_MOVE = 0.1
    """Minimum share of the mixture that a proposal moves. The effect of less would not show in the rewards."""
    NORMAL_QUANTILE = 1.2816
    """The 90 % quantile of the standard normal distribution, for Wilson's one-sided bound."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        mixture = next((spec for spec in run.actuators if spec.name == MIXTURE), None)
        if mixture is None:
            return f"the run announces no {MIXTURE}; pass one part for each level to oven.attach(trainer, mixture=…)"
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
        changed_at = window.last_change_tick(MIXTURE)
        if changed_at >= 0 and window.tick < changed_at + self.WAIT_TICKS:
            return None
        # Rewards before a rollback say nothing about the restored policy.
        since = max(changed_at, window.last_change_tick(ROLLBACK))
        if len(window.series("reward", after=since)) < self.MIN_TICKS:
            return None
        rewards = {level: window.series(f"reward/{level}", after=since, last=self.RECENT) for level in shares}
        rates = {level: median(values) if len(values) >= MIN_REWARDS else 0.5 for level, values in rewards.items()}
        even_share = 1 / len(shares)
        small = [level for level, share in shares.items() if share < even_share / 2]
        starved = [level for level in small if rates[level] < self.MASTERED_REWARD]
        if not starved:
            return None
        open_levels = self._find_open_levels(rewards)
        level_rewards = ", ".join(
            f"{level} {rates[level]:.2f}" if len(rewards[level]) >= MIN_REWARDS else f"{level} unseen"
            for level in shares
        )
        starved_shares = ", ".join(f"{level} gets {shares[level]:.0%}" for level in starved)
        why = f"{starved_shares}, less than half of an even share (rewards: {level_rewards})"
        vote = window.propose(
            MIXTURE, shares, confidence=self.CONFIDENCE, why=why, target="eval/accuracy", expected_change=0.05,
            horizon=40, evidence=("symptom:starved_level",),
        )  # fmt: skip
        mastery = tuple(_measure_mastery(level, values) for level, values in rewards.items())
        question = CurriculumRequest(mastery=mastery, threshold=self.MIN_PREREQUISITE_REWARD)
        return TopicShares(
            vote, shares=shares, learnable={level: rates[level] * (1 - rates[level]) for level in shares},
            waiting=frozenset(level for level in shares if level not in open_levels), min_share=self.FLOOR,
            rounding_topic=starved[0], min_change=self.MIN_MOVE, question=question,
        )  # fmt: skip

    def _find_open_levels(self, rewards: dict[str, list[float]]) -> list[str]:
        """Return the levels before which no level fails. A level without measurements does not count as failing."""
        open_levels = []
        for level, values in rewards.items():
            open_levels.append(level)
            is_measured = len(values) >= MIN_REWARDS
            if is_measured and self._lower_bound(fmean(values), len(values)) < self.MIN_PREREQUISITE_REWARD:
                break
        return open_levels

    def _lower_bound(self, rate: float, trials: int) -> float:
        """Return Wilson's lower bound of a success rate."""
        z = self.NORMAL_QUANTILE
        rate = min(1.0, max(0.0, rate))
        margin = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
        return (rate + z**2 / (2 * trials) - margin) / (1 + z**2 / trials)


def _measure_mastery(level: str, values: Sequence[float]) -> Mastery:
    """Return a level's mastery, with one trial per tick."""
    if len(values) < MIN_REWARDS:
        return Mastery(topic=level, successes=0.0, failures=0.0)
    rate = min(1.0, max(0.0, fmean(values)))
    return Mastery(topic=level, successes=rate * len(values), failures=(1 - rate) * len(values))

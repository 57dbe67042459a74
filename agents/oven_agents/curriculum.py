"""Keeps every level of difficulty that can still be learnt in the data."""

from __future__ import annotations

from statistics import median

from oven_agents.agent import Agent
from oven_agents.robust import total_variation
from oven_agents.window import Window
from oven_controller.messages import RunStarted, Vote

MIXTURE, ROLLBACK = "data.mixture", "run.rollback"


class Curriculum(Agent):
    """Shares in proportion to p(1 − p), with p the level's recent reward: the variance of a Bernoulli reward, which is
    what a group-relative advantage learns from (learnability: Rutherford et al. 2024, arXiv 2408.15099). A level that
    nothing is known of counts as p = ½. Every level keeps a floor, so that forgetting is seen.

    Speaks only when a level that is not mastered gets less than half of an even share: shifting mass between levels
    that all have some did not beat an even mixture on this task (docs/experiments.md).
    """

    needs = ("reward/*",)
    moves = (MIXTURE,)
    speciality = (MIXTURE,)

    RECENT = 10
    LEAST = 5
    WAIT = 15
    FLOOR = 0.1
    MASTERED = 0.95

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        levels = next(spec.choices for spec in run.actuators if spec.name == MIXTURE)
        silent = [level for level in levels if f"reward/{level}" not in {metric.name for metric in run.metrics}]
        return f"the run publishes no reward by level for {', '.join(silent)}" if silent else None

    def vote(self, window: Window) -> Vote | None:
        shares = window.knobs[MIXTURE].shares
        changed = window.settled_after(MIXTURE)
        if changed >= 0 and window.tick < changed + self.WAIT:
            return None
        # What a policy that was rolled back could do says nothing of the one that is there now.
        since = max(changed, window.settled_after(ROLLBACK))
        if len(window.series("reward", after=since)) < self.LEAST:
            return None
        passed = {level: window.series(f"reward/{level}", after=since, last=self.RECENT) for level in shares}
        rate = {level: median(values) if len(values) >= 3 else 0.5 for level, values in passed.items()}
        even = 1 / len(shares)
        starved = [name for name, share in shares.items() if share < even / 2 and rate[name] < self.MASTERED]
        if not starved:
            return None
        learnable = {level: rate[level] * (1 - rate[level]) + 1e-6 for level in shares}
        spare, total = 1 - self.FLOOR * len(shares), sum(learnable.values())
        target = {level: round(self.FLOOR + spare * learnable[level] / total, 3) for level in shares}
        target[starved[0]] += 1 - sum(target.values())
        moved = total_variation(shares, target)
        if moved < 0.1:
            return None
        known = ", ".join(
            f"{level} {rate[level]:.2f}" if len(passed[level]) >= 3 else f"{level} unseen" for level in shares
        )
        why = (
            f"{', '.join(f'{level} gets {shares[level]:.0%}' for level in starved)}, under half of an even share; "
            f"reward by level {known}: move {moved:.0%} of the mixture towards what can still be learnt"
        )
        return window.propose(
            MIXTURE,
            target,
            confidence=0.9,
            why=why,
            target="eval/accuracy",
            expected_change=0.05,
            horizon=40,
            evidence=("symptom:starved_level",),
        )

"""Lowers the weight of a committee member (a judge) whose scores rise while held-out quality falls."""

from __future__ import annotations

import math
from statistics import stdev

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import tentative_confidence
from oven_agents.stats.level_shift import Shift
from oven_agents.stats.objective import held_out_metric
from oven_core.mesh.actuator_values import variation
from oven_core.protocol.messages import RunStarted, Vote

REWARD_WEIGHTS, ROLLBACK, MIXTURE = "reward.weights", "run.rollback", "data.mixture"
JUDGE_MODELS = "committee.*"
"""Actuators that replace the model behind a committee member. A different model has different mean scores."""


class RewardWeights(Agent):
    """Signals: the newest two held-out readings are below the best one, while a member's mean score has risen since the
    best one. An over-optimised proxy reward keeps rising while true quality falls (Gao et al. 2022, arXiv 2210.10760).
    An ensemble of judges delays this but does not prevent it, because all judges share some flaws (Eisenstein et al.
    2023, arXiv 2312.09244). The agent reads evaluations since the last change of the reward weights, a judge or the
    mixture, and since the last rollback.

    Actions: takes half of the weight of each member whose scores rose, and divides it among the members whose scores
    fell. The scores of a rising member no longer track quality, while a falling member noticed the loss.

    False alarms: a change of a member's mean counts only beyond SIGMAS standard errors. The agent is silent while
    held-out quality is flat, because in successful training a proxy may also rise to its ceiling. A rise caused by
    another knob looks the same.

    Limits: the agent needs a held-out metric and at least one member whose scores fell. If all members are fooled, it
    is silent. It never restores weight by itself.
    """

    needs = ("rewards/*/mean",)
    moves = (REWARD_WEIGHTS,)
    options = dict.fromkeys(("clear_confidence", "min_change", "remaining_share", "min_moved_weight"), SHARE_BOUNDS)
    options["min_evaluations"] = (3, 512)  # two that fell and one before them, up to all ticks of the window

    MIN_EVALUATIONS = 4
    """Minimum number of held-out readings since the last change: two that fell, and two to find the best one."""
    MIN_FALL = 0.05
    """Minimum fall of the newest two readings, as a share of the best one. Smaller falls may be evaluation noise."""
    CLEAR_FALL = 0.1
    """Fall of both readings, as a share of the best one, from which the agent's confidence is CLEAR_CONFIDENCE."""
    CLEAR_CONFIDENCE = 0.8
    """Confidence at a clear fall. A smaller fall is only a rule of thumb (oven_agents.stats.confidence)."""
    MIN_CHANGE = 0.02
    """Minimum change of a member's mean score, from 0 to 1. Smaller changes may be significant but do not matter."""
    SIGMAS = 3.0
    """Standard errors that a change must exceed. The threshold is high because several members are tested at once."""
    MIN_STEPS = 5
    """Minimum number of steps before and after the best reading, so that the mean has an error estimate."""
    REMAINING_SHARE = 0.5
    """Share of its weight, 0 to 1, that a fooled member keeps. It is not 0, because weight never returns by itself."""
    MIN_MOVED_WEIGHT = 0.05
    """Minimum total weight to move. A smaller change would have no visible effect."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out_metric(run) is None:
            return "the run announces no held-out metric with a direction, so nothing shows which member is fooled"
        measured = {metric.name for metric in run.metrics}
        # Members that joined late are announced as actuators only.
        measured |= {f"rewards/{spec.name.removeprefix('committee.')}/mean" for spec in run.actuators}
        members = next(spec.choices for spec in run.actuators if spec.name == REWARD_WEIGHTS)
        unmeasured = [member for member in members if f"rewards/{member}/mean" not in measured]
        return f"the run publishes no mean score of {', '.join(unmeasured)}" if unmeasured else None

    def vote(self, window: Window) -> Vote | None:
        metric = held_out_metric(window.run)
        assert metric is not None  # guaranteed by cannot_fire
        since = window.last_change_tick(REWARD_WEIGHTS, JUDGE_MODELS, ROLLBACK, MIXTURE)
        sign = -1.0 if metric.better == "down" else 1.0
        evaluations = [(o.tick, sign * o.metrics[metric.name]) for o in window.observations if metric.name in o.metrics]
        evaluations = [(tick, value) for tick, value in evaluations if tick > since and math.isfinite(value)]
        ticks = [tick for tick, _ in evaluations]
        if len(ticks) < self.MIN_EVALUATIONS or ticks[-1] != window.tick:
            return None  # until the next evaluation, the answer would be the same
        best_tick, best = max(evaluations[:-2], key=lambda reading: reading[1])
        falls = [(best - value) / abs(best) if best else 0.0 for _, value in evaluations[-2:]]
        if min(falls) < self.MIN_FALL:
            return None
        shares = window.knobs[REWARD_WEIGHTS].shares
        changes_or_none = {member: self._measure_change(window, member, since, best_tick) for member in shares}
        changes = {member: change for member, change in changes_or_none.items() if change}
        fooled = [member for member, change in changes.items() if change > 0 and shares[member] > 0]
        reliable = [member for member, change in changes.items() if change < 0]
        if not fooled or not reliable:
            return None
        freed_weight = sum(shares[member] * (1 - self.REMAINING_SHARE) for member in fooled)
        new_shares = self._move_weight(shares, freed_weight, fooled, reliable)
        if variation(shares, new_shares) < self.MIN_MOVED_WEIGHT:
            return None
        movements = [
            f"{member} {'rose' if change > 0 else 'fell'} by {abs(change):.2f}" for member, change in changes.items()
        ]
        why = (
            f"{metric.name} is {falls[0]:.0%} and {falls[1]:.0%} below its best ({sign * best:.3g} at tick "
            f"{best_tick}) in two evaluations, and mean scores changed ({', '.join(movements)}): move "
            f"{freed_weight:.0%} of the weight from {', '.join(fooled)} to {', '.join(reliable)}"
        )
        confidence = self.CLEAR_CONFIDENCE if min(falls) >= self.CLEAR_FALL else tentative_confidence(window.run)
        return window.propose(
            REWARD_WEIGHTS, new_shares, confidence=confidence, why=why, target=metric.name,
            expected_change=sign * abs(best) * falls[-1] / 2, horizon=3 * (ticks[-1] - ticks[-2]),
            evidence=("symptom:reward_up_heldout_down",),
        )  # fmt: skip

    def _move_weight(
        self, shares: dict[str, float], freed_weight: float, fooled: list[str], reliable: list[str]
    ) -> dict[str, float]:
        """Return the shares after the fooled members' freed weight is divided evenly among the reliable members."""
        new_shares = dict(shares)
        for member in fooled:
            new_shares[member] = round(shares[member] * self.REMAINING_SHARE, 4)
        for member in reliable:
            new_shares[member] = round(shares[member] + freed_weight / len(reliable), 4)
        new_shares[reliable[0]] += 1 - sum(new_shares.values())  # the rounding error
        return new_shares

    def _measure_change(self, window: Window, member: str, since: int, best_tick: int) -> float | None:
        """Return the change of a member's mean score from before the best evaluation to the newer half of the ticks
        after it. If the best evaluation was so early that too few ticks precede it, use the first ticks. Return 0 if
        the change is within the noise, and None if there are too few measurements."""
        name = f"rewards/{member}/mean"
        measured = [(o.tick, o.metrics[name]) for o in window.observations if o.tick > since and name in o.metrics]
        if len(measured) < self.MIN_STEPS:
            return None
        last_before = max(best_tick, measured[self.MIN_STEPS - 1][0])
        middle = (last_before + window.tick) // 2
        before = [value for tick, value in measured if tick <= last_before]
        after = [value for tick, value in measured if tick > middle]
        before = before[-max(self.MIN_STEPS, len(after)) :]  # as many values as `after` has
        if len(after) < self.MIN_STEPS:
            return None
        change = Shift(before, after).mean_difference
        error = math.hypot(stdev(before) / math.sqrt(len(before)), stdev(after) / math.sqrt(len(after)))
        return change if abs(change) > max(self.MIN_CHANGE, self.SIGMAS * error) else 0.0

"""Lowers the weight of a committee member whose scores rise while held-out quality falls."""

from __future__ import annotations

import math
from statistics import stdev

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import needs_second
from oven_agents.stats.level_shift import Shift
from oven_agents.stats.objective import held_out
from oven_core.mesh.actuator_values import variation
from oven_core.protocol.messages import RunStarted, Vote

WEIGHTS, ROLLBACK, MIXTURE = "reward.weights", "run.rollback", "data.mixture"
JUDGES = "committee.*"
"""The model that judges as each member. Another model has other means."""
OVER_OPTIMISED = ("symptom:reward_up_heldout_down",)


class RewardWeights(Agent):
    """Signals: the newest two held-out readings are below the best one, while a member's mean score since then is above
    its mean at the best. Past some point a proxy reward keeps rising while the quality that it stands for falls (Gao et
    al. 2022, arXiv 2210.10760). An ensemble of judges delays that and does not prevent it, because all share some flaws
    (Eisenstein et al. 2023, arXiv 2312.09244). The agent reads evaluations since the weights, a judge, the mixture or
    the policy were last set.

    Actions: a member that rose has lost touch with quality, and one that fell saw the loss. Every member with weight
    that rose gives half of its share to those that fell.

    False alarms: a member has moved only beyond SIGMAS standard errors. While held-out quality is flat, the agent is
    silent: a proxy that rises to its ceiling over a plateau is what successful training looks like. A rise from another
    knob looks the same.

    Limits: it is silent without a held-out metric and without a member that saw the loss; if all members are fooled,
    none fell. It never gives weight back by itself.
    """

    needs = ("rewards/*/mean",)
    moves = (WEIGHTS,)
    speciality = (WEIGHTS,)
    options = dict.fromkeys(("sure", "moved", "kept", "worth"), SHARE)

    EVALUATIONS = 4
    """Held-out readings since the last change: two that fell, and two for the best one."""
    FALL = 0.05
    """Share of the best reading by which the newest two must be below it, so that it is not evaluation noise."""
    CLEAR_FALL = 0.1
    """Share of the best reading by which both must be below it for the agent to be sure: twice FALL."""
    SURE = 0.8
    """Confidence at a clear fall. Below that it is a rule of thumb, which needs a second agent."""
    MOVED = 0.02
    """Smallest change of a member's mean score, on a scale of 0 to 1. Smaller ones may be certain and mean nothing."""
    SIGMAS = 3.0
    """Standard errors beyond which a member's score has moved. Several members are tested at once."""
    LEAST = 5
    """Steps on either side of the best reading, for a mean and its error."""
    KEPT = 0.5
    """Share of its weight, 0 to 1, that a fooled member keeps, because weight does not return by itself."""
    WORTH = 0.05
    """Smallest mass of the weights to move. Below it the change would not show."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing tells a fooled member from a good one"
        measured = {metric.name for metric in run.metrics}
        measured |= {
            f"rewards/{spec.name.removeprefix('committee.')}/mean" for spec in run.actuators
        }  # also of late comers
        members = next(spec.choices for spec in run.actuators if spec.name == WEIGHTS)
        unseen = [member for member in members if f"rewards/{member}/mean" not in measured]
        return f"the run publishes no mean score of {', '.join(unseen)}" if unseen else None

    def vote(self, window: Window) -> Vote | None:
        metric = held_out(window.run)
        assert metric is not None  # or cannot_fire had said so
        since = window.last_change_tick(WEIGHTS, JUDGES, ROLLBACK, MIXTURE)
        sign = -1.0 if metric.better == "down" else 1.0
        evaluations = [(o.tick, sign * o.metrics[metric.name]) for o in window.observations if metric.name in o.metrics]
        evaluations = [(tick, value) for tick, value in evaluations if tick > since and math.isfinite(value)]
        # Asked when an evaluation came in, and not again until the next: its answer would be the same.
        if len(evaluations) < self.EVALUATIONS or evaluations[-1][0] != window.tick:
            return None
        best_at, best = max(evaluations[:-2], key=lambda reading: reading[1])
        falls = [(best - value) / abs(best) if best else 0.0 for _, value in evaluations[-2:]]
        if min(falls) < self.FALL:
            return None
        shares = window.knobs[WEIGHTS].shares
        change = {member: self._change(window, member, since, best_at) for member in shares}
        fooled = [m for m, moved in change.items() if moved is not None and moved > 0 and shares[m] > 0]
        saw = [m for m, moved in change.items() if moved is not None and moved < 0]
        if not fooled or not saw:
            return None
        freed = sum(shares[member] * (1 - self.KEPT) for member in fooled)
        target = {m: round(share * self.KEPT, 4) if m in fooled else share for m, share in shares.items()}
        for member in saw:
            target[member] = round(target[member] + freed / len(saw), 4)
        target[saw[0]] += 1 - sum(target.values())
        if variation(shares, target) < self.WORTH:
            return None
        movements = [
            f"{m} {'rose' if moved > 0 else 'fell'} by {abs(moved):.2f}" for m, moved in change.items() if moved
        ]
        why = (
            f"{metric.name} is {falls[0]:.0%} and {falls[1]:.0%} below its best ({sign * best:.3g} at tick {best_at}) "
            f"in two evaluations, while of the members' mean scores {', '.join(movements)}: move {freed:.0%} of the "
            f"weight from {', '.join(fooled)} to {', '.join(saw)}"
        )
        return window.propose(
            WEIGHTS,
            target,
            confidence=self.SURE if min(falls) >= self.CLEAR_FALL else needs_second(window.run),
            why=why,
            target=metric.name,
            expected_change=sign * abs(best) * falls[-1] / 2,
            horizon=3 * (evaluations[-1][0] - evaluations[-2][0]),
            evidence=OVER_OPTIMISED,
        )

    def _change(self, window: Window, member: str, since: int, best_at: int) -> float | None:
        """Return how far a member's mean score moved from before the best evaluation to the newer half of the time
        after it; 0 within noise, None if too little was measured."""
        name = f"rewards/{member}/mean"
        middle = (best_at + window.tick) // 2
        before = [o.metrics[name] for o in window.observations if since < o.tick <= best_at and name in o.metrics]
        after = [o.metrics[name] for o in window.observations if o.tick > middle and name in o.metrics]
        before = before[-max(self.LEAST, len(after)) :]
        if len(before) < self.LEAST or len(after) < self.LEAST:
            return None
        moved = Shift(before, after).of_means
        error = math.hypot(stdev(before) / math.sqrt(len(before)), stdev(after) / math.sqrt(len(after)))
        return moved if abs(moved) > max(self.MOVED, self.SIGMAS * error) else 0.0

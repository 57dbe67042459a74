"""Takes weight from a member of the reward committee whose scores rise while held-out quality falls."""

from __future__ import annotations

import math
from statistics import fmean, stdev

from oven_agents.agent import Agent
from oven_agents.objective import held_out
from oven_agents.odds import THUMB
from oven_agents.robust import total_variation
from oven_agents.window import Window
from oven_controller.messages import RunStarted, Vote

WEIGHTS, ROLLBACK, MIXTURE = "reward.weights", "run.rollback", "data.mixture"
OVER_OPTIMISED = ("symptom:reward_up_heldout_down",)


class CommitteeWeights(Agent):
    """Reward over-optimisation: past some point a proxy reward goes on rising while the quality that it stands for
    falls (Gao et al. 2022, arXiv 2210.10760); an ensemble of judges puts that off and does not prevent it, since some
    flaws are common to all (Eisenstein et al. 2023, arXiv 2312.09244). Held-out quality is what no member is asked for.

    It looks at evaluations since the weights, the mixture or the policy were last set. When the newest two lie clearly
    below the best one, each member's mean score since the best is compared with its mean at the best. Who rose has lost
    touch; who fell saw the loss. Every member with weight that rose gives up half of its share to those that fell.

    Silent without a held-out metric, without a member that saw the loss, and while held-out quality is flat: a proxy
    that rises to its ceiling over a plateau is what training looks like when it works. It never gives weight back by
    itself. Where all members are fooled nobody fell, and it has nothing to propose. A rise that another knob caused
    looks the same to it.
    """

    needs = ("rewards/*/mean",)
    moves = (WEIGHTS,)
    speciality = (WEIGHTS,)

    EVALUATIONS = 4
    FALL = 0.05  # of the best value
    CLEAR_FALL = 0.10
    SURE = 0.8
    MOVED = 0.02  # of a member's mean, on its scale of 0 to 1
    SIGMAS = 3.0  # of the standard error of a difference of means
    LEAST = 5  # steps measured on either side
    KEPT = 0.5  # of a share that is taken from
    WORTH = 0.05  # mass that has to move

    def cannot_fire(self, run: RunStarted) -> str | None:
        if reason := super().cannot_fire(run):
            return reason
        if held_out(run) is None:
            return "no metric is announced as held out with a direction: nothing tells a fooled member from a good one"
        measured = {metric.name for metric in run.metrics}
        members = next(spec.choices for spec in run.actuators if spec.name == WEIGHTS)
        unseen = [member for member in members if f"rewards/{member}/mean" not in measured]
        return f"the run publishes no mean score of {', '.join(unseen)}" if unseen else None

    def vote(self, window: Window) -> Vote | None:
        metric = held_out(window.run)
        assert metric is not None  # or cannot_fire had said so
        since = window.settled_after(WEIGHTS, ROLLBACK, MIXTURE)
        sign = -1.0 if metric.better == "down" else 1.0
        found = [(o.tick, sign * o.metrics[metric.name]) for o in window.observations if metric.name in o.metrics]
        found = [(tick, value) for tick, value in found if tick > since and math.isfinite(value)]
        # Asked when an evaluation came in, and not again until the next: its answer would be the same.
        if len(found) < self.EVALUATIONS or found[-1][0] != window.tick:
            return None
        best_at, best = max(found[:-2], key=lambda one: one[1])
        falls = [(best - value) / abs(best) if best else 0.0 for _, value in found[-2:]]
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
        if total_variation(shares, target) < self.WORTH:
            return None
        told = [f"{m} {'rose' if moved > 0 else 'fell'} by {abs(moved):.2f}" for m, moved in change.items() if moved]
        why = (
            f"{metric.name} is {falls[0]:.0%} and {falls[1]:.0%} below its best ({sign * best:.3g} at tick {best_at}) "
            f"in two evaluations, while of the members' mean scores {', '.join(told)}: move {freed:.0%} of the weight "
            f"from {', '.join(fooled)} to {', '.join(saw)}"
        )
        return window.propose(
            WEIGHTS,
            target,
            confidence=self.SURE if min(falls) >= self.CLEAR_FALL else THUMB,
            why=why,
            target=metric.name,
            expected_change=sign * abs(best) * falls[-1] / 2,
            horizon=3 * (found[-1][0] - found[-2][0]),
            evidence=OVER_OPTIMISED,
        )

    def _change(self, window: Window, member: str, since: int, best_at: int) -> float | None:
        """By how much its mean score moved from before the best evaluation to after it; 0 when it is within noise, None
        when too little is measured. Of the time after, the half that is nearer: a fall is judged where it stands."""
        name = f"rewards/{member}/mean"
        middle = (best_at + window.tick) // 2
        before = [o.metrics[name] for o in window.observations if since < o.tick <= best_at and name in o.metrics]
        after = [o.metrics[name] for o in window.observations if o.tick > middle and name in o.metrics]
        before = before[-max(self.LEAST, len(after)) :]
        if len(before) < self.LEAST or len(after) < self.LEAST:
            return None
        moved = fmean(after) - fmean(before)
        error = math.hypot(stdev(before) / math.sqrt(len(before)), stdev(after) / math.sqrt(len(after)))
        return moved if abs(moved) > max(self.MOVED, self.SIGMAS * error) else 0.0

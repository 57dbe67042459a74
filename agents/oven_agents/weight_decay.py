"""Lowers a weight decay that pulls harder than the gradient, or pushes."""

from __future__ import annotations

from oven_agents import stride
from oven_agents.agent import Agent
from oven_agents.objective import objective, signed
from oven_agents.odds import odds
from oven_agents.remedies import Alternatives, Plan, offer
from oven_agents.robust import quantile
from oven_agents.window import Window

DECAY, ROLLBACK = stride.DECAY, stride.ROLLBACK


class WeightDecay(Agent):
    """A step consists of the gradient's part and the decay's, and only the decay's points straight at the origin. At
    equilibrium they balance, and the norm stands still (Kosson et al. 2023, arXiv 2305.17212); so where most of each
    step's length makes the weights smaller, the decay is what moves them. Then it goes back to before the weights
    shrank and lowers the decay, to half and then to a tenth of that; together, since what has shrunk does not grow back
    at a decay that fits. What still shrinks them then is no decay, nor what shrinks them by more than a step is long.

    Weights that nobody decays, norm gains most often, can hide in the common norm that the others vanish. So it looks
    at the decay's own part of the step, too: λ‖w‖ over the update is √(λ/2) at equilibrium, a few hundredths for any λ
    in use, and half of the step only where the weights are far from it. There it lowers the decay until that part is
    FITTING; but not where it was far smaller before at the same decay, and the steps got shorter.

    And a decay whose sign was lost pushes: where every step for a while leads straight away from the origin (the cosine
    of step and weights is above STRAIGHT; .35 at most on healthy runs, .8 where moments broke), it goes back to before
    and lowers the decay to a tenth.

    On healthy runs all are far below the threshold: an update of Adam is nearly orthogonal to the weights. A decay
    that is wrong by a small factor is not seen, nor missed.

    Limits: without `optim/weight_norm` and `optim/update_ratio` it cannot tell. Weights that a user means to shrink (a
    late phase of decay to prune) look the same to it.
    """

    needs = (stride.WEIGHTS, stride.LENGTH)
    moves = (DECAY, ROLLBACK)
    speciality = (DECAY, ROLLBACK)

    MOSTLY, ALL = 0.5, 1.1
    """Of a step's length; the norm cannot lose more than all of it by the step itself."""
    LOST = 0.03
    """Of the norm, or gained: less than that is no harm yet."""
    HALF, TENTH, ATTEMPTS = 0.5, 0.1, 2
    STRAIGHT = 0.85
    FITTING = 0.05
    BACK = 32
    SURE, GAIN, HORIZON = 0.9, 0.05, 20

    def vote(self, window: Window) -> Alternatives | None:
        if DECAY not in window.knobs:
            return None
        return self._shrinks(window) or self._pushes(window) or self._pulls(window)

    def _pushes(self, window: Window) -> Alternatives | None:
        cosine = stride.outward(window)
        knob = window.knobs[DECAY]
        if not self.STRAIGHT <= cosine <= self.ALL or knob.number <= 0 or window.settled_after(DECAY) >= 0:
            return None
        norms = window.kept(stride.WEIGHTS, last=stride.LATELY + 1)
        healthy, before = norms[0]
        if norms[-1][1] < (1 + self.LOST) * before:
            return None
        lowered = knob.bounded(knob.number * self.TENTH)
        why = f"every step of the last {stride.LATELY} leads straight away from the origin (cosine with the weights "
        why += f"{min(cosine, 1):.2f}): {DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offered(window, healthy, lowered, why, 1.0, "weights_pushed_out")

    def _pulls(self, window: Window) -> Alternatives | None:
        share = stride.pulled(window)
        knob = window.knobs[DECAY]
        if share < self.MOSTLY or self._shorter(window, knob.number, share):
            return None
        lowered = knob.bounded(knob.number * self.FITTING / share)
        since = window.settled_after(DECAY, ROLLBACK)
        seen = window.kept(stride.LENGTH, after=since, last=self.BACK)
        part = f"weight decay makes up {min(share, 1):.0%} of each step's length"
        why = f"{part}: {DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offered(window, seen[0][0], lowered, why, 1.0)

    def _shorter(self, window: Window, decay: float, share: float) -> bool:
        """Whether the share was far lower before at the same decay: then it is the steps that got shorter."""
        since = window.settled_after(DECAY)
        rates = dict(window.kept(stride.RATE, after=since))
        lengths = window.kept(stride.LENGTH, after=since)
        shares = [rates[tick] * decay / length for tick, length in lengths if tick in rates and length > 0]
        return bool(shares) and quantile(shares, 0.1) < share / 2

    def _shrinks(self, window: Window) -> Alternatives | None:
        if not self.MOSTLY <= stride.shrinking(window) <= self.ALL:
            return None
        norms = window.kept(stride.WEIGHTS, after=window.settled_after(DECAY, ROLLBACK), last=self.BACK)
        if len(norms) < stride.NOW:
            return None
        top = max(value for _, value in norms)
        healthy = max(tick for tick, value in norms if value >= 0.99 * top)
        lost = 1 - norms[-1][1] / top
        knob, tried = window.knobs[DECAY], window.applied(DECAY)
        if lost < self.LOST or knob.number <= 0 or len(tried) >= self.ATTEMPTS:
            return None
        factor = 0.1 if tried else self.HALF
        lowered = knob.bounded(knob.number * factor)
        why = (
            f"the weights lost {lost:.0%} of their norm in {window.tick - healthy} ticks, and "
            f"{stride.shrinking(window):.0%} of each step's length goes into that: {DECAY} {knob.number:.3g} → "
            f"{lowered:.3g}"
        )
        return self._offered(window, healthy, lowered, why, min(1.0, lost * 4))

    def _offered(
        self, window: Window, healthy: int, lowered: float, why: str, severity: float, symptom: str = "weights_shrink"
    ) -> Alternatives | None:
        target = objective(window.run)
        wanted = [(ROLLBACK, float(max(0, healthy - 1)))] if ROLLBACK in window.knobs else []
        sure = odds(
            window, self.SURE, target.name, self.GAIN, self.HORIZON, back=healthy if ROLLBACK in window.knobs else None
        )
        votes = [
            window.propose(
                name,
                value,
                confidence=sure,
                why=why,
                target=target.name,
                expected_change=signed(target, self.GAIN),
                horizon=self.HORIZON,
            )
            for name, value in [*wanted, (DECAY, lowered)]
        ]
        return offer([Plan("lower_weight_decay", tuple(votes))], {symptom: severity})

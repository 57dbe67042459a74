"""Lowers a weight decay that pulls harder than the gradient."""

from __future__ import annotations

from oven_agents import stride
from oven_agents.agent import Agent
from oven_agents.objective import objective, signed
from oven_agents.remedies import Alternatives, Plan, offer
from oven_agents.window import Window

DECAY, ROLLBACK = stride.DECAY, stride.ROLLBACK


class WeightDecay(Agent):
    """A step consists of the gradient's part and the decay's, and only the decay's points straight at the origin. At
    equilibrium they balance, and the norm stands still (Kosson et al. 2023, arXiv 2305.17212); so where most of each
    step's length makes the weights smaller, the decay is what moves them. Then it goes back to before the weights
    shrank and lowers the decay, to half and by a tenth from then on; together, since what has shrunk does not grow back
    at a decay that fits.

    On healthy runs the share is far below the threshold: an update of Adam is nearly orthogonal to the weights. A decay
    that is wrong by a small factor is not seen, nor missed.

    Limits: without `optim/weight_norm` and `optim/update_ratio` it cannot tell. Weights that a user means to shrink (a
    late phase of decay to prune) look the same to it.
    """

    needs = (stride.WEIGHTS, stride.LENGTH)
    moves = (DECAY, ROLLBACK)
    speciality = (DECAY, ROLLBACK)

    MOSTLY = 0.5
    LOST = 0.03
    """Of the norm: less than that is no harm yet."""
    HALF = 0.5
    BACK = 32

    def vote(self, window: Window) -> Alternatives | None:
        if DECAY not in window.knobs or stride.shrinking(window) < self.MOSTLY:
            return None
        norms = window.kept(stride.WEIGHTS, after=window.settled_after(DECAY, ROLLBACK), last=self.BACK)
        if len(norms) < stride.NOW:
            return None
        top = max(value for _, value in norms)
        healthy = max(tick for tick, value in norms if value >= 0.99 * top)
        lost = 1 - norms[-1][1] / top
        knob = window.knobs[DECAY]
        if lost < self.LOST or knob.number <= 0:
            return None
        factor = 0.1 if window.applied(DECAY) else self.HALF
        lowered = knob.bounded(knob.number * factor)
        why = (
            f"the weights lost {lost:.0%} of their norm in {window.tick - healthy} ticks, and "
            f"{stride.shrinking(window):.0%} of each step's length goes into that: {DECAY} {knob.number:.3g} → "
            f"{lowered:.3g}"
        )
        target = objective(window.run)
        wanted = [(ROLLBACK, float(max(0, healthy - 1)))] if ROLLBACK in window.knobs else []
        votes = [
            window.propose(
                name,
                value,
                confidence=0.86,
                why=why,
                target=target.name,
                expected_change=signed(target, 0.05),
                horizon=20,
            )
            for name, value in [*wanted, (DECAY, lowered)]
        ]
        return offer([Plan("lower_weight_decay", tuple(votes))], {"weights_shrink": min(1.0, lost * 4)})

"""Lowers a weight decay that outweighs the gradient, or that has the wrong sign."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats import optimizer_gauges as gauges
from oven_agents.stats.confidence import confidence
from oven_agents.stats.objective import objective, signed
from oven_agents.stats.robust_statistics import quantile

DECAY, ROLLBACK = gauges.DECAY, gauges.ROLLBACK


class WeightDecay(Agent):
    """Signals: a step consists of the gradient's part and the decay's, and only the decay's points straight at the
    origin. At equilibrium they balance and the norm stands still (Kosson et al. 2023, arXiv 2305.17212). So if most of
    each step's length shrinks the weights, the decay moves them. Weights without decay, usually norm gains, can hide in
    the common norm that the others vanish, so the decay's own part of the step is read too: λ‖w‖ divided by the update
    is √(λ/2) at equilibrium, a few hundredths for any λ in use, and half of the step only if the weights are far from
    it. And a decay with a lost sign pushes: for a while every step leads straight away from the origin.

    Actions: if the weights shrink, it goes back and lowers the decay, to half and then to a tenth of that; together,
    because shrunken weights do not grow back at a fitting decay. If the decay's part is too large, it lowers the decay
    until that part is FITTING, but not if the part was far smaller before at the same decay and the steps got shorter.
    If the decay pushes, it goes back and lowers the decay to a tenth.

    False alarms: healthy runs are all far below the threshold, because an update of Adam is nearly orthogonal to the
    weights. If the weights still shrink after two attempts, or by more than a step's length, the decay is not the
    cause. A decay that is wrong by a small factor is not seen.

    Limits: the agent needs `optim/weight_norm` and `optim/update_ratio`. Weights that a user means to shrink (a late
    phase of decay to prune) look the same.
    """

    needs = (gauges.WEIGHTS, gauges.LENGTH)
    moves = (DECAY, ROLLBACK)
    speciality = (DECAY, ROLLBACK)
    options = dict.fromkeys(("mostly", "lost", "half", "tenth", "straight", "fitting", "sure"), SHARE)

    MOSTLY = 0.5
    """Share of a step's length, 0 to 1, from which the decay moves the weights. On a tuned run it was at most 0.012."""
    ALL = 1.1
    """Share of a step's length above which something else moves the weights: a step shrinks them by its length at
    most."""
    LOST = 0.03
    """Share of the norm, 0 to 1, that must be lost or gained. Less is not yet harm."""
    HALF = 0.5
    """Factor of the decay at the first attempt if the weights shrink."""
    TENTH = 0.1
    """Factor of the decay at the second attempt, and if it pushes: half was not enough, or the sign is wrong."""
    ATTEMPTS = 2
    """Lowerings after which another cause shrinks the weights. In `pruning_left_on` it went back seven times."""
    STRAIGHT = 0.85
    """Minimum cosine of step and weights for a step that points straight away from the origin: 0.88 to 1.0 with the
    sign lost, at most 0.35 on healthy runs, 0.72 with broken moments."""
    FITTING = 0.05
    """Share of a step's length, 0 to 1, to which the decay is lowered: a few hundredths, as at equilibrium."""
    BACK = 32
    """Newest ticks to search for intact weights. A rollback goes no further back."""
    SURE = 0.9
    """Confidence before noise is counted. No success rate is recorded; the signs leave few other causes."""
    GAIN = 0.05
    """Forecast gain of the objective, in its unit."""
    HORIZON = 20
    """Ticks in which the forecast is judged. Restored weights show it soon."""

    def vote(self, window: Window) -> Alternatives | None:
        if DECAY not in window.knobs:
            return None
        return self._shrinks(window) or self._pushes(window) or self._pulls(window)

    def _pushes(self, window: Window) -> Alternatives | None:
        cosine = gauges.outward_cosine(window)
        knob = window.knobs[DECAY]
        if not self.STRAIGHT <= cosine <= self.ALL or knob.number <= 0 or window.last_change_tick(DECAY) >= 0:
            return None
        norms = window.surviving_series(gauges.WEIGHTS, last=gauges.LATELY + 1)
        healthy, before = norms[0]
        if norms[-1][1] < (1 + self.LOST) * before:
            return None
        lowered = knob.bounded(knob.number * self.TENTH)
        why = f"every step of the last {gauges.LATELY} leads straight away from the origin (cosine with the weights "
        why += f"{min(cosine, 1):.2f}): {DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offered(window, healthy, lowered, why, 1.0, "weights_pushed_out")

    def _pulls(self, window: Window) -> Alternatives | None:
        share = gauges.decay_share(window)
        knob = window.knobs[DECAY]
        if share < self.MOSTLY or self._shorter(window, knob.number, share):
            return None
        lowered = knob.bounded(knob.number * self.FITTING / share)
        since = window.last_change_tick(DECAY, ROLLBACK)
        seen = window.surviving_series(gauges.LENGTH, after=since, last=self.BACK)
        part = f"weight decay makes up {min(share, 1):.0%} of each step's length"
        why = f"{part}: {DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offered(window, seen[0][0], lowered, why, 1.0)

    def _shorter(self, window: Window, decay: float, share: float) -> bool:
        """Return whether the share was far lower before at the same decay. Then the steps got shorter."""
        since = window.last_change_tick(DECAY)
        rates = dict(window.surviving_series(gauges.RATE, after=since))
        lengths = window.surviving_series(gauges.LENGTH, after=since)
        shares = [rates[tick] * decay / length for tick, length in lengths if tick in rates and length > 0]
        return bool(shares) and quantile(shares, 0.1) < share / 2

    def _shrinks(self, window: Window) -> Alternatives | None:
        if not self.MOSTLY <= gauges.shrink_share(window) <= self.ALL:
            return None
        norms = window.surviving_series(gauges.WEIGHTS, after=window.last_change_tick(DECAY, ROLLBACK), last=self.BACK)
        if len(norms) < gauges.NOW:
            return None
        top = max(value for _, value in norms)
        healthy = max(tick for tick, value in norms if value >= 0.99 * top)
        lost = 1 - norms[-1][1] / top
        knob, tried = window.knobs[DECAY], window.applied(DECAY)
        if lost < self.LOST or knob.number <= 0 or len(tried) >= self.ATTEMPTS:
            return None
        factor = self.TENTH if tried else self.HALF
        lowered = knob.bounded(knob.number * factor)
        why = (
            f"the weights lost {lost:.0%} of their norm in {window.tick - healthy} ticks, and "
            f"{gauges.shrink_share(window):.0%} of each step's length goes into that: {DECAY} "
            f"{knob.number:.3g} → "
            f"{lowered:.3g}"
        )
        return self._offered(window, healthy, lowered, why, min(1.0, lost * 4))

    def _offered(
        self, window: Window, healthy: int, lowered: float, why: str, severity: float, symptom: str = "weights_shrink"
    ) -> Alternatives | None:
        target = objective(window.run)
        back = healthy if ROLLBACK in window.knobs else None
        wanted = {} if back is None else {ROLLBACK: float(max(0, back - 1))}
        sure = confidence(
            window, hit_rate=self.SURE, target=target.name, gain=self.GAIN, horizon=self.HORIZON, back=back
        )
        plan = Plan.of_changes(
            window, "lower_weight_decay", {**wanted, DECAY: lowered}, confidence=sure, why=why, target=target.name,
            expected_change=signed(target, self.GAIN), horizon=self.HORIZON,
        )  # fmt: skip
        return offer([plan], {symptom: severity})

"""Lowers a weight decay that outweighs the gradient or has the wrong sign."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.alternative_plans import Alternatives, Plan, offer
from oven_agents.sdk.window import Window
from oven_agents.stats import optimizer_gauges as gauges
from oven_agents.stats.confidence import estimate_confidence
from oven_agents.stats.objective import apply_sign, objective
from oven_agents.stats.robust_statistics import quantile

WEIGHT_DECAY, ROLLBACK = gauges.WEIGHT_DECAY, gauges.ROLLBACK


class WeightDecay(Agent):
    """Signals: a step consists of the gradient's part and the weight decay's part. Only the decay points straight at
    the origin. At equilibrium, the two balance and the norm stays constant (Kosson et al. 2023, arXiv 2305.17212). So
    if most of each step's length shrinks the weights, the decay moves them. Weights without decay, usually the gains of
    normalisation layers, may keep the total norm up while the other weights vanish. So the agent also computes the
    decay's part of the step: λ‖w‖ divided by the update. At equilibrium, this part is √(λ/2), a few hundredths for any
    usual λ. It reaches half of the step only if the weights are far from equilibrium. A decay with the wrong sign
    pushes the weights outwards, so that for a while every step leads straight away from the origin.

    Actions: if the weights shrink, rolls back and lowers the decay, first to half and then to a tenth of that. The two
    changes are one plan, because shrunken weights do not grow back at a good decay. If the decay's part is too large,
    lowers the decay until the part is TARGET_SHARE. It does not do so if the part was far smaller before at the same
    decay, because then shorter steps are the cause. If the decay pushes the weights outwards, rolls back and lowers the
    decay to a tenth.

    False alarms: healthy runs are all far below the threshold, because an update of Adam is nearly orthogonal to the
    weights. If the weights still shrink after two attempts, or by more than a step's length, the decay is not the
    cause. The agent does not detect a decay that is wrong by a small factor.

    Limits: the agent needs `optim/weight_norm` and `optim/update_ratio`. Weights that a user shrinks on purpose (a late
    phase of decay for pruning) look the same.
    """

    needs = (gauges.WEIGHT_NORM, gauges.UPDATE_RATIO)
    moves = (WEIGHT_DECAY, ROLLBACK)
    options = dict.fromkeys(
        ("min_share", "min_norm_change", "first_factor", "second_factor", "min_cosine", "target_share", "confidence"),
        SHARE_BOUNDS,
    )

    MIN_SHARE = 0.5
    """Minimum share of a step's length, 0 to 1, at which the decay outweighs the gradient. A tuned run had 0.012."""
    MAX_SHARE = 1.1
    """Share of a step's length above which weight decay is not the cause, because a step cannot shrink weights more."""
    MIN_NORM_CHANGE = 0.03
    """Minimum change of the weights' norm, as a fraction of the norm. A smaller change does no harm yet."""
    FIRST_FACTOR = 0.5
    """Factor of the decay at the first attempt if the weights shrink."""
    SECOND_FACTOR = 0.1
    """Factor of the decay at the second attempt, and for a decay that pushes the weights."""
    MAX_ATTEMPTS = 2
    """Maximum number of attempts, because a run may shrink its weights on purpose."""
    MIN_COSINE = 0.85
    """Minimum cosine of step and weights for a decay with the wrong sign. With damaged moments, it was 0.72."""
    TARGET_SHARE = 0.05
    """Target of the decay's share of a step's length, 0 to 1: a few hundredths, as at equilibrium."""
    MAX_ROLLBACK = 32
    """Number of newest ticks to search for intact weights, and so the maximum number of ticks to roll back."""
    CONFIDENCE = 0.9
    """Confidence before noise is taken into account. It was not measured, but few other causes are possible."""
    GAIN = 0.05
    """Forecast gain of the objective, in its unit."""
    HORIZON = 20
    """Number of ticks after which the forecast is judged. Restored weights show their effect soon."""

    def vote(self, window: Window) -> Alternatives | None:
        if WEIGHT_DECAY not in window.knobs:
            return None
        return self._treat_shrinking(window) or self._treat_wrong_sign(window) or self._treat_large_share(window)

    def _treat_wrong_sign(self, window: Window) -> Alternatives | None:
        cosine = gauges.outward_cosine(window)
        knob = window.knobs[WEIGHT_DECAY]
        was_changed = window.last_change_tick(WEIGHT_DECAY) >= 0
        if not self.MIN_COSINE <= cosine <= self.MAX_SHARE or knob.number <= 0 or was_changed:
            return None
        norms = window.surviving_series(gauges.WEIGHT_NORM, last=gauges.RECENT_TICKS + 1)
        (healthy_tick, old_norm), (_, new_norm) = norms[0], norms[-1]
        if new_norm < (1 + self.MIN_NORM_CHANGE) * old_norm:
            return None
        lowered = knob.bounded(knob.number * self.SECOND_FACTOR)
        why = f"each of the last {gauges.RECENT_TICKS} steps points straight away from the origin (cosine with the "
        why += f"weights {min(cosine, 1):.2f}): {WEIGHT_DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offer(window, healthy_tick, lowered, why, severity=1.0, symptom="weights_pushed_out")

    def _treat_large_share(self, window: Window) -> Alternatives | None:
        share = gauges.decay_share(window)
        knob = window.knobs[WEIGHT_DECAY]
        if share < self.MIN_SHARE or self._steps_got_shorter(window, knob.number, share):
            return None
        lowered = knob.bounded(knob.number * self.TARGET_SHARE / share)
        since = window.last_change_tick(WEIGHT_DECAY, ROLLBACK)
        lengths = window.surviving_series(gauges.UPDATE_RATIO, after=since, last=self.MAX_ROLLBACK)
        first_tick, _ = lengths[0]
        why = f"weight decay makes up {min(share, 1):.0%} of each step's length: "
        why += f"{WEIGHT_DECAY} {knob.number:.3g} → {lowered:.3g}"
        return self._offer(window, first_tick, lowered, why, severity=1.0, symptom="weights_shrink")

    def _steps_got_shorter(self, window: Window, decay: float, share: float) -> bool:
        """Return whether the steps got shorter, so that the share was far lower before at the same decay."""
        since = window.last_change_tick(WEIGHT_DECAY)
        rates = dict(window.surviving_series(gauges.LEARNING_RATE, after=since))
        lengths = window.surviving_series(gauges.UPDATE_RATIO, after=since)
        shares = [rates[tick] * decay / length for tick, length in lengths if tick in rates and length > 0]
        return bool(shares) and quantile(shares, 0.1) < share / 2

    def _treat_shrinking(self, window: Window) -> Alternatives | None:
        """Offer a rollback and a lower decay if most of each step's length shrinks the weights."""
        if not self.MIN_SHARE <= gauges.shrink_share(window) <= self.MAX_SHARE:
            return None
        norms = window.surviving_series(
            gauges.WEIGHT_NORM, after=window.last_change_tick(WEIGHT_DECAY, ROLLBACK), last=self.MAX_ROLLBACK
        )
        if len(norms) < gauges.LEVEL_TICKS:
            return None
        max_norm = max(value for _, value in norms)
        healthy_tick = max(tick for tick, value in norms if value >= 0.99 * max_norm)
        _, newest_norm = norms[-1]
        lost_share = 1 - newest_norm / max_norm
        knob, attempts = window.knobs[WEIGHT_DECAY], window.applied(WEIGHT_DECAY)
        if lost_share < self.MIN_NORM_CHANGE or knob.number <= 0 or len(attempts) >= self.MAX_ATTEMPTS:
            return None
        factor = self.SECOND_FACTOR if attempts else self.FIRST_FACTOR
        lowered = knob.bounded(knob.number * factor)
        why = (
            f"the weights lost {lost_share:.0%} of their norm in {window.tick - healthy_tick} ticks, and "
            f"{gauges.shrink_share(window):.0%} of each step's length shrinks them: {WEIGHT_DECAY} {knob.number:.3g} → "
            f"{lowered:.3g}"
        )
        severity = min(1.0, 4 * lost_share)
        return self._offer(window, healthy_tick, lowered, why, severity=severity, symptom="weights_shrink")

    def _offer(
        self, window: Window, healthy_tick: int, decay: float, why: str, *, severity: float, symptom: str
    ) -> Alternatives | None:
        target = objective(window.run)
        rollback_tick = healthy_tick if ROLLBACK in window.knobs else None
        rollback = {} if rollback_tick is None else {ROLLBACK: float(max(0, rollback_tick - 1))}
        confidence = estimate_confidence(
            window, hit_rate=self.CONFIDENCE, target=target.name, gain=self.GAIN, horizon=self.HORIZON,
            rollback_tick=rollback_tick,
        )  # fmt: skip
        plan = Plan.of_changes(
            window, "lower_weight_decay", {**rollback, WEIGHT_DECAY: decay}, confidence=confidence, why=why,
            target=target.name, expected_change=apply_sign(target, self.GAIN), horizon=self.HORIZON,
        )  # fmt: skip
        return offer([plan], {symptom: severity})

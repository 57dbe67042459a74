"""Turns on quantisation-aware training late in a run whose weights will be quantised for serving."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import apply_sign
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, RunStarted, Vote

QUANTISATION, LEARNING_RATE, OFF = "train.quantisation", "learning_rate", "none"


class Quantisation(Agent):
    """Signals: a held-out metric of the rounded weights is worse than the same metric of the exact weights, late in a
    run. A run is late past LATE_PROGRESS, or past EARLY_PROGRESS if the learning rate is below LOW_RATE_SHARE of its
    peak.

    Actions: sets `train.quantisation` to the metric's precision, once. From then on the forward pass uses rounded
    weights, and the gradient ignores the rounding (quantisation-aware training: Jacob et al. 2018, arXiv 1712.05877;
    the straight-through estimator: Bengio et al. 2013, arXiv 1308.3432). The agent waits for two reasons. Early in a
    run, the model still learns a lot and treats rounding as noise, and the weights are far from their final values.
    Both conditions for lateness are rules of thumb.

    False alarms: the agent acts only if rounding costs at least MIN_COST of the metric. The exact weights may get
    slightly worse, which does not matter if the rounded weights are served.

    Limits: a run that does not announce the precision for serving has no such metric, and the agent stays silent. The
    peak of the learning rate is its maximum over the window of 512 ticks, which may not contain the real peak. Once a
    person or another agent has changed the knob, the agent does not touch it.
    """

    moves = (QUANTISATION,)
    options = dict.fromkeys(
        ("early_progress", "late_progress", "low_rate_share", "min_cost", "regained_share", "confidence"), SHARE_BOUNDS
    )

    EARLY_PROGRESS = 0.4
    """Progress, 0 to 1, from which the agent acts if the learning rate is low."""
    LATE_PROGRESS = 0.65
    """Progress, 0 to 1, from which the agent acts at any learning rate. The weights can still adapt."""
    LOW_RATE_SHARE = 0.15
    """Share of its peak, 0 to 1, below which the learning rate is low."""
    MIN_COST = 0.005
    """Minimum cost of rounding, as a share of the metric, 0 to 1. In a small model, 4 bits cost more, 8 bits less."""
    REGAINED_SHARE = 0.5
    """Forecast gain, as a share of the cost of rounding, 0 to 1."""
    CONFIDENCE = 0.85
    """Confidence of the proposal: the highest that measured outcomes support for any agent."""
    HORIZON = 100
    """Number of ticks after which the forecast is judged. In the recipe with this knob, readings are 50 steps apart."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        knob = next((spec for spec in run.actuators if spec.name == QUANTISATION), None)
        if knob is None:
            return f"the run announces no {QUANTISATION}: its trainer cannot train through rounded weights"
        if _served_metric(run, knob) is None:
            return (
                f"no held-out metric is measured with weights rounded to "
                f"{' or '.join(c for c in knob.choices if c != OFF)}, so the precision for serving is unknown "
                "(recipe pretrain: --served int8 or int4)"
            )
        if not run.horizon.is_known:
            return "the run announces no horizon (steps or seconds), so its progress is unknown"
        return super().cannot_fire(run)

    def vote(self, window: Window) -> Vote | None:
        knob = window.knobs[QUANTISATION]
        served = _served_metric(window.run, knob.spec)
        if served is None or knob.value != OFF or window.applied(QUANTISATION) or not self._is_late(window):
            return None
        precision, metric, exact_name = served
        newest_rounded, newest_exact = window.series(metric.name, last=1), window.series(exact_name, last=1)
        if not newest_rounded or not newest_exact:
            return None
        rounded, exact = newest_rounded[0], newest_exact[0]
        cost = apply_sign(metric, exact - rounded)
        if cost < self.MIN_COST * abs(exact):
            return None
        return window.propose(
            QUANTISATION, precision, confidence=self.CONFIDENCE, target=metric.name,
            expected_change=apply_sign(metric, self.REGAINED_SHARE * cost), horizon=self.HORIZON,
            reads=(metric.name, exact_name),
            why=f"rounding to {precision} changes {exact_name} from {exact:.4g} to {rounded:.4g} ({metric.name}): "
            f"{QUANTISATION} {OFF} → {precision} for the last {1 - window.progress:.0%} of the run",
        )  # fmt: skip

    def _is_late(self, window: Window) -> bool:
        if window.progress > self.LATE_PROGRESS:
            return True
        rates = window.series(LEARNING_RATE)
        return window.progress > self.EARLY_PROGRESS and bool(rates) and rates[-1] < self.LOW_RATE_SHARE * max(rates)


def _served_metric(run: RunStarted, knob: ActuatorSpec) -> tuple[str, MetricSpec, str] | None:
    """Return the first held-out metric of rounded weights, such as eval/int4/bits_per_byte, as (precision, metric, name
    of the same metric of the exact weights). Return None if the run does not announce both metrics."""
    names = {spec.name for spec in run.metrics}
    for spec in run.metrics:
        parts = spec.name.split("/")
        for choice in knob.choices:
            exact_name = "/".join(part for part in parts if part != choice)
            if choice != OFF and choice in parts and spec.held_out and spec.better != "neither" and exact_name in names:
                return choice, spec, exact_name
    return None

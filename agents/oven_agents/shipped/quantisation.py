"""Turns on quantisation-aware training late in a run whose weights will be quantised for serving."""

from __future__ import annotations

from oven_agents.sdk.agent import SHARE, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import signed
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, RunStarted, Vote

KNOB, RATE, OFF = "train.quantisation", "learning_rate", "none"


class Quantisation(Agent):
    """Signals: a held-out metric of the rounded weights that is worse than the same metric of the exact weights, late
    in a run: past LATE, or past EARLY once the learning rate is below COOLED of its peak.

    Actions: sets `train.quantisation` to the metric's precision, once. From then on the forward pass uses rounded
    weights, and the gradient ignores the rounding (quantisation-aware training: Jacob et al. 2018, arXiv 1712.05877;
    the straight-through estimator: Bengio et al. 2013, arXiv 1308.3432). It waits until late, because rounding is noise
    to a model that still learns much, and because the weights must be near their final values. Both conditions come
    from the system that this agent is based on.

    False alarms: the agent needs a measured loss from rounding of at least MATTERS of the metric. The metric of the
    exact weights may get slightly worse, which does not matter to someone who serves rounded weights.

    Limits: a run that does not announce in which precision it will be served has no such metric, and the agent stays
    silent. The peak of the learning rate is that of the last 512 ticks; in a longer run the later condition counts.
    Once a person or another agent has changed the knob, the agent does not touch it.
    """

    moves = (KNOB,)
    speciality = (KNOB,)
    options = dict.fromkeys(("early", "late", "cooled", "matters", "regained", "sure"), SHARE)

    EARLY = 0.4
    """Progress, 0 to 1, from which a learning rate that has come down turns it on."""
    LATE = 0.65
    """Progress, 0 to 1, from which it is turned on at any rate. The rest of the run adapts to the rounding."""
    COOLED = 0.15
    """Share of its peak, 0 to 1, below which the learning rate has come down."""
    MATTERS = 0.005
    """Share of the metric, 0 to 1, that rounding must cost: 8 bits cost a small model less, 4 bits more."""
    REGAINED = 0.5
    """Share of the rounding cost, 0 to 1, that the agent forecasts to regain."""
    SURE = 0.85
    """Confidence: the highest value for confidences from outcomes."""
    HORIZON = 100
    """Ticks in which the forecast is judged. In the recipe with this knob, held-out readings are 50 steps apart."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        knob = next((spec for spec in run.actuators if spec.name == KNOB), None)
        if knob is None:
            return f"the run announces no {KNOB}: its trainer cannot train through rounded weights"
        if _served(run, knob) is None:
            return (
                f"no held-out metric is of weights rounded to {' or '.join(c for c in knob.choices if c != OFF)}: "
                "nothing says that they will be served so (recipe pretrain: --served int8 or int4)"
            )
        if not run.horizon.known:
            return "the run announces no horizon, neither steps nor seconds: nothing is late in it"
        return super().cannot_fire(run)

    def vote(self, window: Window) -> Vote | None:
        knob = window.knobs[KNOB]
        served = _served(window.run, knob.spec)
        if served is None or knob.value != OFF or window.applied(KNOB) or not self._late(window):
            return None
        choice, metric, plain = served
        rounded, exact = (next(iter(window.series(name, last=1)), None) for name in (metric.name, plain))
        if rounded is None or exact is None:
            return None
        cost = signed(metric, exact - rounded)
        if cost < self.MATTERS * abs(exact):
            return None
        return window.propose(
            KNOB, choice, confidence=self.SURE, target=metric.name,
            expected_change=signed(metric, self.REGAINED * cost), horizon=self.HORIZON,
            why=f"rounded to {choice} the weights have {metric.name} {rounded:.4g}, and {plain} is {exact:.4g}: at "
            f"{window.progress:.0%} of the run what is left of it can train for that",
        )  # fmt: skip

    def _late(self, window: Window) -> bool:
        if window.progress > self.LATE:
            return True
        rates = window.series(RATE)
        return window.progress > self.EARLY and bool(rates) and rates[-1] < self.COOLED * max(rates)


def _served(run: RunStarted, knob: ActuatorSpec) -> tuple[str, MetricSpec, str] | None:
    """Return the precision of a held-out metric such as eval/int4/bits_per_byte, that metric, and the name of the same
    metric of the exact weights; the first that is announced with all of them."""
    names = {spec.name for spec in run.metrics}
    for spec in run.metrics:
        parts = spec.name.split("/")
        for choice in knob.choices:
            plain = "/".join(part for part in parts if part != choice)
            if choice != OFF and choice in parts and spec.held_out and spec.better != "neither" and plain in names:
                return choice, spec, plain
    return None

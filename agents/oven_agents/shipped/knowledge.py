"""Lowers the weight of the knowledge graph's loss term in stages during a run."""

from __future__ import annotations

from typing import Final

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_core.protocol.messages import RunStarted, Vote

WEIGHT: Final = "channel.kg"
STAGES: Final = ((0.7, 0.2), (0.4, 0.6), (0.15, 0.8))
"""(progress at which a stage begins, share of the initial weight), the latest stage first."""


class Knowledge(Agent):
    """Signals: the run's progress, and the weight of the loss term that uses a graph's token scores (`channel.kg`).

    Actions: lowers the weight in three stages, to 0.8, 0.6 and 0.2 of the first value at 15, 40 and 70 % of the run.
    The weight makes the objective differ from the held-out metric, so the run should end with a low weight. Over 300
    steps, such weights gained 0.19 nats on the graph's tokens and cost 0.03 bits per byte on all tokens (three seeds,
    no significant effect; docs/experiments.md). The agent never raises the weight. The user decides how much the graph
    counts, and a weight of 0 stays 0.

    False alarms: none, because progress alone decides. It was not shown that the schedule is better than a
    constant weight.

    Limits: a run without a horizon has no progress. Once a person has set the weight to a value outside the schedule,
    the agent is silent.
    """

    reads = ("progress",)
    moves = (WEIGHT,)
    options = dict.fromkeys(("gain",), SHARE_BOUNDS)

    MIN_CHANGE = 0.05
    """Minimum change in a stage, as a share of the initial weight. Smaller changes would only fill the log."""
    GAIN = 0.005
    """Forecast gain, as a share of the metric's newest value."""
    HORIZON = 100
    """Number of ticks after which the forecast is judged. In the recipe with this knob, readings are 50 steps apart."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        if all(spec.name != WEIGHT for spec in run.actuators):
            return (
                f"the run announces no {WEIGHT}: it trains without a graph's token scores (recipe pretrain: add "
                "--token_prior kg or --token_prior FILE)"
            )
        if not run.horizon.is_known:
            return "the run announces no horizon (steps or seconds), so its progress is unknown"
        return super().cannot_fire(run)

    def vote(self, window: Window) -> Vote | None:
        knob, changes = window.knobs[WEIGHT], window.applied(WEIGHT)
        first_value = changes[0].before if changes else knob.number
        initial = float(first_value) if isinstance(first_value, int | float) else knob.number
        scheduled = [knob.bounded(round(share * initial, 6)) for _, share in STAGES]
        if any(receipt.decision_id in window.commanded and receipt.after not in scheduled for receipt in changes):
            return None
        share = next((share for begin, share in STAGES if window.progress >= begin), 1.0)
        lowered = knob.bounded(round(share * initial, 6))
        if lowered > knob.number - self.MIN_CHANGE * initial or knob.number <= 0:
            return None
        target = held_out_metric(window.run) or objective(window.run)
        current = next(iter(window.series(target.name, last=1)), 1.0)
        return window.propose(
            WEIGHT, lowered, confidence=firm_confidence(window.run), target=target.name,
            expected_change=apply_sign(target, self.GAIN * abs(current)), horizon=self.HORIZON,
            why=f"{window.progress:.0%} of the run is done, so the graph's scores get {share:.0%} of their "
            f"initial weight: {WEIGHT} {knob.number:.3g} → {lowered:.3g}",
        )  # fmt: skip

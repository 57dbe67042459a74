"""Which way is better, and by which gauge: from what the run announced."""

from __future__ import annotations

from oven_agents.sdk.window import Window
from oven_core.protocol.messages import MetricSpec, RunStarted

REWARD = MetricSpec(name="reward", better="up")
LOSS = MetricSpec(name="loss", better="down")


def objective(run: RunStarted) -> MetricSpec:
    """What is optimised, measured in every step: the reward where there is one, else the loss; with the direction that
    the run announces, and the usual one where it announces none."""
    announced = {spec.name: spec for spec in run.metrics}
    usual = REWARD if "reward" in announced else LOSS
    spec = announced.get(usual.name, usual)
    return spec if spec.better != "neither" else spec.model_copy(update={"better": usual.better})


def held_out(run: RunStarted) -> MetricSpec | None:
    """The held-out metric that stands for the whole: the fewest parts in its name, then the first announced."""
    declared = [spec for spec in run.metrics if spec.held_out and spec.better != "neither"]
    return min(declared, key=lambda spec: spec.name.count("/"), default=None)


def signed(metric: MetricSpec, gain: float) -> float:
    """A gain as a change of the metric in its own unit; a reading of `readings` as the metric's own value."""
    return -gain if metric.better == "down" else gain


def readings(window: Window, last: int | None = None) -> list[tuple[int, float]]:
    """(tick, value, higher ones better) of the held-out metric on the way to the present weights, oldest first, at most
    the `last` ones; none where there is no such metric."""
    metric = held_out(window.run)
    seen = window.surviving_series(metric.name, last=last) if metric else []
    return [(tick, signed(metric, value)) for tick, value in seen] if metric else []

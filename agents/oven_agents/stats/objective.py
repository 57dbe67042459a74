"""Finds the metrics by which a run is judged, and their better direction, in the run's announcement."""

from __future__ import annotations

from oven_agents.sdk.window import Window
from oven_core.mesh.state import held_out as first_held_out
from oven_core.protocol.messages import MetricSpec, RunStarted

REWARD = MetricSpec(name="reward", better="up")
LOSS = MetricSpec(name="loss", better="down")


def objective(run: RunStarted) -> MetricSpec:
    """Return the reward if the run has one, else the loss. Its direction is the announced one, or the usual one."""
    announced = {spec.name: spec for spec in run.metrics}
    usual = REWARD if "reward" in announced else LOSS
    spec = announced.get(usual.name, usual)
    return spec if spec.better != "neither" else spec.model_copy(update={"better": usual.better})


def held_out(run: RunStarted) -> MetricSpec | None:
    """Return the most general held-out metric: the one with the fewest parts in its name, then the first."""
    return first_held_out(run.metrics)


def signed(metric: MetricSpec, gain: float) -> float:
    """Convert a gain to a change of the metric in its unit, or a value of `readings` to the metric's own."""
    return -gain if metric.better == "down" else gain


def readings(window: Window, last: int | None = None) -> list[tuple[int, float]]:
    """Return (tick, value) of the held-out metric on the way to the present weights, at most the `last` ones, oldest
    first. Higher values are better. Empty without such a metric."""
    metric = held_out(window.run)
    if metric is None:
        return []
    seen = window.surviving_series(metric.name, last=last)
    if window.earlier and (last is None or len(seen) < last):
        before = min(observation.step for observation in window.observations)
        seen = [(tick, value) for tick, step, value in window.earlier if step < before] + seen
    return [(tick, signed(metric, value)) for tick, value in seen[-last if last else 0 :]]

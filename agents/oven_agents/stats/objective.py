"""Finds the objective and the held-out metric of a run, with the direction that is better."""

from __future__ import annotations

from oven_agents.sdk.window import Window
from oven_core.mesh.state import main_held_out_metric, training_objective
from oven_core.protocol.messages import MetricSpec, RunStarted

LOSS = MetricSpec(name="loss", better="down")


def objective(run: RunStarted) -> MetricSpec:
    """Return the reward if the run has one, otherwise the loss. A missing direction is replaced by the usual one."""
    spec = training_objective(run.metrics) or LOSS
    usual = "up" if spec.name == "reward" else "down"
    return spec if spec.better != "neither" else spec.model_copy(update={"better": usual})


def held_out_metric(run: RunStarted) -> MetricSpec | None:
    """Return the most general held-out metric, which is the first of those whose names have the fewest parts."""
    return main_held_out_metric(run.metrics)


def apply_sign(metric: MetricSpec, gain: float) -> float:
    """Convert a gain to a change of the metric, or a value from `readings` to a value of the metric. Either one is
    negated if lower values of the metric are better."""
    return -gain if metric.better == "down" else gain


def readings(window: Window, last: int | None = None) -> list[tuple[int, float]]:
    """Return (tick, value) of the held-out readings that no rollback discarded, oldest first. Higher values are better.
    `last` limits the result to the newest readings. The list is empty if the run has no held-out metric."""
    metric = held_out_metric(window.run)
    if metric is None:
        return []
    points = window.surviving_series(metric.name, last=last)
    if window.earlier and (last is None or len(points) < last):
        first_step = min(observation.step for observation in window.observations)
        points = [(tick, value) for tick, step, value in window.earlier if step < first_step] + points
    newest = points[-last:] if last else points
    return [(tick, apply_sign(metric, value)) for tick, value in newest]

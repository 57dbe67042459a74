"""Summarises recent metrics, knobs and changes for a model's prompt. It contains no training prompts or completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from oven_agents.sdk.window import Window
from oven_agents.stats.objective import objective
from oven_core.protocol.messages import Receipt, RunStarted, Value

MAX_METRICS: Final = 40
"""Metrics in a summary, those with a better direction first. Each costs tokens in every question."""
TICKS: Final = 60
"""Newest ticks that a metric's figures cover."""
NEWEST: Final = 10
"""The newest of them, whose mean is compared with the mean of the others."""
MAX_CHANGES: Final = 8
"""Newest changes of knobs in a summary."""
DIGITS: Final = 4
"""Significant digits: a fifth would be noise in any metric."""


def summary(window: Window, actuators: Sequence[str]) -> dict[str, Any]:
    """Plain values. `actuators`: those that the model may propose to change, of which bounded scalars are shown."""
    horizon = window.run.horizon
    return {
        "run": {
            "recipe": window.run.recipe,
            "tick": window.tick,
            "step": window.last.step,
            "of_steps": horizon.max_steps,
            "progress": _rounded(window.progress),
            "objective": objective(window.run).name,
        },
        "metrics": _metrics(window),
        "targets": list(target_metrics(window.run)),
        "knobs": {
            name: {
                "value": knob.number,
                "low": knob.spec.low,
                "high": knob.spec.high,
                "scale": knob.spec.scale,
                "unit": knob.spec.unit,
                "changed_at_tick": knob.changed_at,
            }
            for name, knob in window.knobs.items()
            if name in actuators and knob.spec.kind == "scalar" and None not in (knob.spec.low, knob.spec.high)
        },
        "changes": [_change(window, receipt) for receipt in window.receipts[-MAX_CHANGES:]],
        "open_ballots": sorted(window.open_ballots),
    }


def target_metrics(run: RunStarted) -> tuple[str, ...]:
    """Metrics with a better direction, which a proposal may target."""
    return tuple(metric.name for metric in run.metrics if metric.better != "neither")


def _metrics(window: Window) -> dict[str, Any]:
    announced = {spec.name: spec for spec in window.run.metrics}
    observed = sorted({name for observation in window.observations[-TICKS:] for name in observation.metrics})
    judged = [name for name in target_metrics(window.run) if name in observed]
    summaries: dict[str, Any] = {}
    for name in list(dict.fromkeys([*judged, *observed]))[:MAX_METRICS]:
        readings = window.series(name, last=TICKS)
        values = [value for value in readings if math.isfinite(value)]
        not_finite = len(readings) - len(values)
        figures: dict[str, Any] = {}
        if name in judged:
            figures = {"better": announced[name].better, "held_out": announced[name].held_out}
        elif len(set(values)) <= 1 and not not_finite:
            continue  # a constant says nothing
        if values:
            now, before = values[-NEWEST:], values[:-NEWEST]
            figures |= {"last": _rounded(values[-1]), "mean_newest": _rounded(fmean(now)), "readings": len(values)}
            if before:
                figures |= {"mean_before": _rounded(fmean(before)), "spread_before": _rounded(pstdev(before))}
        summaries[name] = figures | ({"not_finite": not_finite} if not_finite else {})
    return summaries


def _change(window: Window, receipt: Receipt) -> dict[str, Any]:
    """Return a knob's change with the objective's mean before and after it."""
    metric = objective(window.run).name
    readings = [(o.tick, o.metrics[metric]) for o in window.observations if metric in o.metrics]
    before = [value for tick, value in readings if tick <= receipt.tick][-NEWEST:]
    after = [value for tick, value in readings if tick > receipt.tick][:NEWEST]
    change: dict[str, Any] = {
        "tick": receipt.tick,
        "actuator": receipt.actuator,
        "before": _plain(receipt.before),
        "after": _plain(receipt.after),
        "status": receipt.status,
    }
    for name, values in ((f"{metric}_before", before), (f"{metric}_after", after)):
        if values and all(map(math.isfinite, values)):
            change[name] = _rounded(fmean(values))
    return change


def _plain(value: Value) -> Value:
    return _rounded(value) if isinstance(value, int | float) and math.isfinite(value) else value


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

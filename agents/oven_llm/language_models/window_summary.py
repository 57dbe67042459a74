"""Summarises recent metrics, knobs and changes for a language model, without any training prompts or completions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from oven_agents.sdk.window import Window
from oven_agents.stats.objective import objective
from oven_core.protocol.messages import Receipt, RunStarted, Value

MAX_METRICS: Final = 40
"""Maximum metrics in a summary. The target metrics come first."""
SUMMARY_TICKS: Final = 60
"""Number of latest ticks that a metric's figures cover."""
RECENT_READINGS: Final = 10
"""Number of latest readings whose mean is compared with the mean of the earlier readings."""
MAX_CHANGES: Final = 8
"""Maximum changes of knobs in a summary. Older changes are omitted."""
SIGNIFICANT_DIGITS: Final = 4
"""Significant digits of a number. A fifth digit would be noise in any metric."""


def summarise(window: Window, actuators: Sequence[str]) -> dict[str, Any]:
    """Return a window's summary as JSON values. Of the knobs in `actuators`, it includes the bounded scalars."""
    horizon = window.run.horizon
    return {
        "run": {
            "recipe": window.run.recipe,
            "tick": window.tick,
            "step": window.last.step,
            "of_steps": horizon.max_steps,
            "progress": _round(window.progress),
            "objective": objective(window.run).name,
        },
        "metrics": _summarise_metrics(window),
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
        "changes": [_summarise_change(window, receipt) for receipt in window.receipts[-MAX_CHANGES:]],
        "open_ballots": sorted(window.open_ballots),
    }


def target_metrics(run: RunStarted) -> tuple[str, ...]:
    """Return the names of the metrics that a proposal may target: those that should rise or fall."""
    return tuple(metric.name for metric in run.metrics if metric.better != "neither")


def _summarise_metrics(window: Window) -> dict[str, Any]:
    announced = {spec.name: spec for spec in window.run.metrics}
    observed = sorted({name for observation in window.observations[-SUMMARY_TICKS:] for name in observation.metrics})
    targets = [name for name in target_metrics(window.run) if name in observed]
    summaries: dict[str, Any] = {}
    for name in list(dict.fromkeys([*targets, *observed]))[:MAX_METRICS]:
        readings = window.series(name, last=SUMMARY_TICKS)
        values = [value for value in readings if math.isfinite(value)]
        non_finite_count = len(readings) - len(values)
        figures: dict[str, Any] = {}
        if name in targets:
            figures = {"better": announced[name].better, "held_out": announced[name].held_out}
        elif len(set(values)) <= 1 and not non_finite_count:
            continue  # a constant metric is not informative
        if values:
            recent, before = values[-RECENT_READINGS:], values[:-RECENT_READINGS]
            figures |= {"last": _round(values[-1]), "mean_newest": _round(fmean(recent)), "readings": len(values)}
            if before:
                figures |= {"mean_before": _round(fmean(before)), "spread_before": _round(pstdev(before))}
        if non_finite_count:
            figures["not_finite"] = non_finite_count
        summaries[name] = figures
    return summaries


def _summarise_change(window: Window, receipt: Receipt) -> dict[str, Any]:
    """Return a knob's change with the objective's mean before and after it."""
    metric = objective(window.run).name
    readings = [(entry.tick, entry.metrics[metric]) for entry in window.observations if metric in entry.metrics]
    before = [value for tick, value in readings if tick <= receipt.tick][-RECENT_READINGS:]
    after = [value for tick, value in readings if tick > receipt.tick][:RECENT_READINGS]
    change: dict[str, Any] = {
        "tick": receipt.tick,
        "actuator": receipt.actuator,
        "before": _round_value(receipt.before),
        "after": _round_value(receipt.after),
        "status": receipt.status,
    }
    for name, values in ((f"{metric}_before", before), (f"{metric}_after", after)):
        if values and all(map(math.isfinite, values)):
            change[name] = _round(fmean(values))
    return change


def _round_value(value: Value) -> Value:
    return _round(value) if isinstance(value, int | float) and math.isfinite(value) else value


def _round(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")

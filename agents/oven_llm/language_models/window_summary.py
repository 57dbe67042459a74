"""A window in figures, as a model is shown it: metrics, knobs, changes and symptoms. No prompt and no answer of the
trained model is in a window, so none is in here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from oven_agents.sdk.alternative_plans import phase
from oven_agents.sdk.window import Window
from oven_agents.stats.level_shift import rise
from oven_agents.stats.objective import objective
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, Symptom
from oven_core.protocol.messages import Receipt, Value

METRICS: Final = 40
"""Metrics that are shown: the judged ones first. More would cost tokens at every question."""
SHOWN: Final = 60
"""Newest ticks that a metric is summed up over."""
NEWEST: Final = 10
"""Of them, those whose mean is held against that of the ones before."""
CHANGES: Final = 8
"""Receipts that are shown, the newest."""
SURE: Final = 4.5
"""Standard errors by which a symptom's metric has moved: as rare by chance as 3.6 under a normal law (level_shift)."""
DIGITS: Final = 4
"""Significant digits of a figure: a fifth would be noise in any metric of a step."""

_RISES: Final = (
    ("loss", "loss_creeps_up", 1),
    ("grad_norm", "grad_norm_growth", 1),
    ("kl", "kl_runaway", 1),
    ("entropy", "entropy_growth", 1),
    ("entropy", "entropy_collapse", -1),
    ("reward", "policy_collapse", -1),
)
"""Metric, the graph's symptom, and the direction in which it moves then."""


def symptoms(window: Window) -> tuple[str, ...]:
    """What the window shows, by nodes of the knowledge graph, from its metrics alone."""
    found = [
        symptom
        for metric, symptom, sign in _RISES
        if rise([sign * value for value in _finite(window, metric)], NEWEST) > SURE
    ]
    if any(not math.isfinite(value) for value in window.series("loss", last=NEWEST)):
        found.append("loss_nan")
    alike = _finite(window, "frac_reward_zero_std")[-NEWEST:]
    if alike and fmean(alike) > 0.5:
        found.append("zero_advantage_groups")
    return tuple(found)


def enquiry(window: Window, seen: Sequence[str]) -> DiagnoseRequest:
    """What to ask the knowledge graph of them; `seen` is not empty."""
    run = window.run
    return DiagnoseRequest(
        phase=phase(run),
        symptoms=tuple(Symptom(id=id_) for id_ in seen),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
    )


def summary(window: Window, actuators: Sequence[str]) -> dict[str, Any]:
    """Plain values. `actuators`: those that may be proposed for."""
    horizon = window.run.horizon
    return {
        "run": {
            "recipe": window.run.recipe,
            "tick": window.tick,
            "step": window.last.step,
            "of_steps": horizon.max_steps,
            "progress": _figure(window.progress),
            "objective": objective(window.run).name,
        },
        "metrics": _metrics(window),
        "knobs": {
            name: {
                "value": knob.value,
                "low": knob.spec.low,
                "high": knob.spec.high,
                "scale": knob.spec.scale,
                "unit": knob.spec.unit,
                "changed_at_tick": knob.changed_at,
            }
            for name, knob in window.knobs.items()
            if name in actuators
        },
        "changes": [_change(window, receipt) for receipt in window.receipts[-CHANGES:]],
        "open_ballots": sorted(window.open_ballots),
    }


def diagnosed(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """The graph's word, in the same form; nothing where it is away."""
    if diagnosis is None:
        return {}
    return {
        "causes": [{"cause": cause.id, "rank": _figure(cause.p)} for cause in diagnosis.causes[:5]],
        "remedies": [
            {"remedy": remedy.id, "changes": list(remedy.changes), "score": _figure(remedy.score)}
            for remedy in diagnosis.remedies[:5]
            if not remedy.unmet
        ],
    }


def _metrics(window: Window) -> dict[str, Any]:
    announced = {spec.name: spec for spec in window.run.metrics}
    judged = [name for name, spec in announced.items() if spec.better != "neither"]
    seen = sorted({name for observation in window.observations[-SHOWN:] for name in observation.metrics})
    names = list(dict.fromkeys([*(name for name in judged if name in seen), *seen]))[:METRICS]
    found: dict[str, Any] = {}
    for name in names:
        values, spec = _finite(window, name), announced.get(name)
        missing = len(window.series(name, last=SHOWN)) - len(values)
        about: dict[str, Any] = {}
        if name in judged and spec is not None:
            about = {"better": spec.better, "held_out": spec.held_out}
        elif len(set(values)) <= 1 and not missing:
            continue  # it says nothing, and costs tokens
        if values:
            now, before = values[-NEWEST:], values[:-NEWEST]
            about |= {"last": _figure(values[-1]), "mean_newest": _figure(fmean(now)), "readings": len(values)}
            about |= {"mean_before": _figure(fmean(before)), "spread_before": _figure(pstdev(before))} if before else {}
        found[name] = about | ({"not_finite": missing} if missing else {})
    return found


def _change(window: Window, receipt: Receipt) -> dict[str, Any]:
    """A receipt, with the objective's mean before and after it."""
    metric = objective(window.run).name
    before = [o.metrics[metric] for o in window.observations if o.tick <= receipt.tick and metric in o.metrics]
    after = [o.metrics[metric] for o in window.observations if o.tick > receipt.tick and metric in o.metrics]
    about: dict[str, Any] = {
        "tick": receipt.tick,
        "actuator": receipt.actuator,
        "before": _shown(receipt.before),
        "after": _shown(receipt.after),
        "status": receipt.status,
    }
    for word, values in ((f"{metric}_before", before[-NEWEST:]), (f"{metric}_after", after[:NEWEST])):
        if values and all(map(math.isfinite, values)):
            about[word] = _figure(fmean(values))
    return about


def _finite(window: Window, metric: str) -> list[float]:
    return [value for value in window.series(metric, last=SHOWN) if math.isfinite(value)]


def _shown(value: Value) -> Value:
    return _figure(value) if isinstance(value, int | float) and math.isfinite(value) else value


def _figure(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

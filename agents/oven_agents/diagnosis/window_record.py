"""Converts an agent's window to the record of a run, so that live runs are judged by the same rules as logs."""

from __future__ import annotations

from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out_metric


def record_of(window: Window) -> RunRecord:
    """Return the record of the newest ticks, with all held-out readings, without what a rollback discarded."""
    record = RunRecord(run=window.run, start_count=1)
    record.first_values = {name: knob.value for name, knob in window.knobs.items()}
    intervening = {name for name, knob in window.knobs.items() if knob.spec.intervenes}
    record.changes = [
        (receipt.tick, receipt.actuator)
        for receipt in window.receipts
        if receipt.status == "applied" and receipt.actuator in intervening
    ]
    first_step = window.observations[0].step
    metric = held_out_metric(window.run)
    if metric is not None:
        for tick, step, value in window.earlier:
            if step < first_step:
                record.add_readings(tick, step, {metric.name: value})
    for name in sorted({name for observation in window.observations for name in observation.metrics}):
        points = window.surviving_series(name)
        ticks, values = record.series.setdefault(name, ([], []))
        ticks += [tick for tick, _ in points]
        values += [value for _, value in points]
    surviving_ticks = {tick for ticks, _ in record.series.values() for tick in ticks}
    for observation in window.observations:
        if observation.tick in surviving_ticks:
            record.ticks.append(observation.tick)
            record.steps.append(observation.step)
    record.observation_count = len(record.ticks)
    return record

"""Tests whether earlier rollbacks helped."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.objective import apply_sign, held_out_metric, objective, readings
from oven_agents.stats.optimizer_gauges import LR_SCALE
from oven_core.protocol.actuators import ROLLBACK, UNDO
from oven_core.protocol.messages import Receipt

MAX_ROLLBACKS: Final = 3
"""Maximum number of rollbacks without a new best held-out reading, for a run with a recurring fault."""
MIN_RECOVERY: Final = 1 / 3
"""Minimum share of the lost quality that a rollback must regain. One half would undo rollbacks that helped."""
RELAPSE_TICKS: Final = 16
"""Ticks after a rollback within which a returning fault counts as a relapse. A fault that appears later may be a
different one, which another rollback can repair."""


def rollbacks_exhausted(window: Window) -> bool:
    """Return whether MAX_ROLLBACKS rollbacks led to no new best held-out reading. Return False without readings."""
    best_tick = _best_tick(window)
    if best_tick is None:
        return False
    return sum(rollback.tick > best_tick for rollback in window.applied(ROLLBACK)) >= MAX_ROLLBACKS


def last_rollback_failed(window: Window) -> bool:
    """Return whether the last rollback failed: it was undone, or it regained less than MIN_RECOVERY within
    RELAPSE_TICKS. Then another rollback would not help, and the model has to train through the fault. A rollback before
    the best reading does not count. Neither does a rollback in a run with a reward, because a policy never adapts to a
    misleading reward."""
    best_tick, last = _best_tick(window), next(reversed(window.jumps), None)
    if best_tick is None or last is None or last.tick < best_tick or objective(window.run).name != "loss":
        return False
    if last.actuator == UNDO:
        return True
    if last.actuator != ROLLBACK:
        return False
    shares = recovered_shares(window, last) or []
    return any(share < MIN_RECOVERY for tick, share in shares if tick <= last.tick + RELAPSE_TICKS)


def recovered_shares(window: Window, rollback: Receipt) -> list[tuple[int, float]] | None:
    """Return (tick, recovered share of the lost quality) for each held-out reading since the rollback. A share of 1 is
    as good as the best reading before the checkpoint, and 0 is as bad as the last discarded one. Return None if one of
    the two was not measured, or if no quality was lost."""
    metric = held_out_metric(window.run)
    if metric is None:
        return None
    points = [(o, apply_sign(metric, o.metrics[metric.name])) for o in window.observations if metric.name in o.metrics]
    restored_step = rollback.after if isinstance(rollback.after, int | float) else -1
    before = [value for o, value in points if o.tick <= rollback.tick and o.step <= restored_step]
    discarded = [value for o, value in points if o.tick <= rollback.tick and o.step > restored_step]
    if not before or not discarded or not max(before) > discarded[-1]:  # `not >` also covers NaN
        return None
    best, failed = max(before), discarded[-1]
    return [
        (o.tick, (value - failed) / (best - failed) if math.isfinite(value) else -math.inf)
        for o, value in points
        if o.tick > rollback.tick
    ]


def failed_scales(window: Window) -> list[float]:
    """Return, for each rollback, the learning-rate scale that was in use when it became necessary."""
    scales = []
    for rollback in window.applied(ROLLBACK):
        scale = next((s.value for s in window.run.actuators if s.name == LR_SCALE), None)
        for change in window.applied(LR_SCALE):
            if change.tick <= rollback.tick:
                # A cut at the rollback's tick is part of its plan, so the scale before that cut is the one that failed.
                scale = change.before if change.tick == rollback.tick else change.after
        if isinstance(scale, int | float):
            scales.append(float(scale))
    return scales


def _best_tick(window: Window) -> int | None:
    """Return the tick of the best held-out reading."""
    points = readings(window)
    return max(points, key=lambda reading: reading[1])[0] if points else None

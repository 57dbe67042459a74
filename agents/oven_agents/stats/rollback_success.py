"""Tests whether earlier rollbacks helped."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out, objective, readings, signed
from oven_agents.stats.optimizer_gauges import SCALE
from oven_core.protocol.actuator_names import ROLLBACK, UNDO
from oven_core.protocol.messages import Receipt

LIMIT: Final = 3
"""Rollbacks without a new best held-out reading after which no agent goes back. Without a limit an episode had up to
seventeen (docs/experiments.md)."""
RECOVERED: Final = 1 / 3
"""Share of the loss that a rollback must regain, 0 to 1. With a half, one that regained 42 % and helped was undone."""
SOON: Final = 16
"""Ticks after a rollback in which a recurring fault must return; later it may be slowed down, or be new. With 24, one
episode of `open_mask` fell from 0.94 to 0.43 of the harm undone (docs/experiments.md)."""


def rollbacks_exhausted(window: Window) -> bool:
    """Return whether LIMIT rollbacks, by anyone, led to no new best held-out reading. False without readings."""
    best = _best(window)
    return best is not None and sum(receipt.tick > best for receipt in window.applied(ROLLBACK)) >= LIMIT


def last_rollback_failed(window: Window) -> bool:
    """Return whether the last rollback since the best reading was undone, or regained less than RECOVERED within SOON.
    Then the fault recurs, and the model has to adapt to it. False under a reward: a policy that its reward drags off
    never adapts."""
    best, last = _best(window), next(reversed(window.jumps), None)
    if best is None or last is None or last.tick < best or objective(window.run).name != "loss":
        return False
    if last.actuator != ROLLBACK:
        return last.actuator == UNDO
    return any(share < RECOVERED for tick, share in recovered_share(window, last) or () if tick <= last.tick + SOON)


def recovered_share(window: Window, back: Receipt) -> list[tuple[int, float]] | None:
    """Return (tick, recovered share of the loss) at each held-out reading since the rollback.

    1 is as good as the best reading before the checkpoint, 0 as bad as the last discarded one. None if neither was
    measured, or nothing was lost.
    """
    metric = held_out(window.run)
    if metric is None:
        return None
    readings = [(o, o.metrics.get(metric.name)) for o in window.observations]
    seen = [(o, signed(metric, value)) for o, value in readings if value is not None]
    to = back.after if isinstance(back.after, int | float) else -1
    before = [value for o, value in seen if o.tick <= back.tick and o.step <= to]
    discarded = [value for o, value in seen if o.tick <= back.tick and o.step > to]
    if not before or not discarded or not max(before) > discarded[-1]:
        return None
    lost = max(before) - discarded[-1]
    since = [(o.tick, value) for o, value in seen if o.tick > back.tick]
    return [(tick, (value - discarded[-1]) / lost if math.isfinite(value) else -math.inf) for tick, value in since]


def scales_rolled_back(window: Window) -> list[float]:
    """Return the scales of the rate at which rollbacks were applied."""
    scales = []
    for back in window.applied(ROLLBACK):
        scale = next((s.value for s in window.run.actuators if s.name == SCALE), None)
        for change in window.applied(SCALE):
            if change.tick <= back.tick:
                # The cut comes with the rollback, so the rate before the cut collapsed.
                scale = change.before if change.tick == back.tick else change.after
        if isinstance(scale, int | float):
            scales.append(float(scale))
    return scales


def _best(window: Window) -> int | None:
    """Return the tick of the best held-out reading."""
    seen = readings(window)
    return max(seen, key=lambda reading: reading[1])[0] if seen else None

"""How probably a change will be seen to beat doing nothing: what an agent's confidence is the probability of."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_core.mesh.measurements import sigma
from oven_core.protocol.messages import RunStarted

NEEDS_SECOND: Final = 0.55
"""Confidence of a rule of thumb, which nothing was measured of: below a specialist's quorum by default."""
STANDS_ALONE: Final = 0.65
"""Confidence of what an agent stands behind, however little of it will be seen: above that quorum by default."""
MARGIN: Final = 0.05
"""Distance of both from the quorum, so that rounding does not decide."""
ENOUGH: Final = 8
"""Measurements that a spread is taken from."""


def needs_second(run: RunStarted) -> float:
    """NEEDS_SECOND, or less where a lower quorum would let a rule of thumb decide alone."""
    below = round(run.rules.specialist_confidence - MARGIN, 3)
    return max(0.0, min(NEEDS_SECOND, below))


def stands_alone(run: RunStarted) -> float:
    """STANDS_ALONE, or more where the run's quorum is higher."""
    return min(1.0, max(STANDS_ALONE, round(run.rules.specialist_confidence + MARGIN, 3)))


def confidence(
    window: Window, *, hit_rate: float, target: str, gain: float, horizon: int, back: int | None = None
) -> float:
    """`hit_rate`, the share of such changes that helped where their effect could be seen at all, and less where it is
    lost in noise, but not below the run's quorum for that reason alone, nor below STANDS_ALONE.

    An outcome holds the target's mean over the `horizon` ticks before a change against that of the second half of the
    `horizon` after it; that of a rollback to tick `back` holds the last `horizon` of the steps that it throws away
    against the same steps the second time. The change beat doing nothing for certain from two standard errors on, at
    even odds where nothing shows. So of a gain of `gain`, in the target's unit, a share of `gain` / (2 · noise) is seen
    (oven_core.mesh.measurements; docs/deciding.md). Where the target is measured too rarely to know its noise:
    `hit_rate`.
    """
    seen = [value for value in window.series(target, after=window.tick - horizon) if math.isfinite(value)]
    if len(seen) < min(ENOUGH, horizon // 2):
        return hit_rate
    before, after = float(len(seen)), max(1.0, len(seen) / 2)
    if back is not None:
        before = after = max(1.0, len(seen) * min(1.0, (window.tick - back) / horizon))
    noise = sigma(seen) * math.sqrt(1 / before + 1 / after)
    shown = min(1.0, abs(gain) / (2 * noise)) if noise > 0 else 1.0
    least = max(STANDS_ALONE, min(hit_rate, stands_alone(window.run)))
    return round(max(least, 0.5 + (hit_rate - 0.5) * shown), 3)

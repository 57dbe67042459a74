"""How probably a change will be seen to beat doing nothing: what an agent's confidence is the probability of."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_controller.mesh.effect import sigma

THUMB: Final = 0.55
"""Of a rule of thumb, which nothing was measured of: a second voice, or a person, has to agree."""
LEAST: Final = 0.65
"""Of what an agent stands behind, however little of it will be seen: above a specialist's quorum, by default."""
ENOUGH: Final = 8
"""Measurements that a spread is taken from."""


def odds(window: Window, sure: float, target: str, gain: float, horizon: int, *, back: int | None = None) -> float:
    """`sure`, the share of such changes that helped where their effect could be seen at all, and less where it is lost
    in noise, down to LEAST.

    An outcome holds the target's mean over the `horizon` ticks before a change against that of the second half of the
    `horizon` after it; that of a rollback to tick `back` holds the last `horizon` of the steps that it throws away
    against the same steps the second time. The change beat doing nothing for certain from two standard errors on, at
    even odds where nothing shows. So of a gain of `gain`, in the target's unit, a share of `gain` / (2 · noise) is seen
    (oven_controller.mesh.effect; docs/deciding.md). Where the target is measured too rarely to know its noise: `sure`.
    """
    seen = [value for value in window.series(target, after=window.tick - horizon) if math.isfinite(value)]
    if len(seen) < min(ENOUGH, horizon // 2):
        return sure
    before, after = float(len(seen)), max(1.0, len(seen) / 2)
    if back is not None:
        before = after = max(1.0, len(seen) * min(1.0, (window.tick - back) / horizon))
    noise = sigma(seen) * math.sqrt(1 / before + 1 / after)
    shown = min(1.0, abs(gain) / (2 * noise)) if noise > 0 else 1.0
    return round(max(LEAST, 0.5 + (sure - 0.5) * shown), 3)

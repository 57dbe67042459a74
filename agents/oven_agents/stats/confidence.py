"""An agent's confidence: the probability that its change measurably beats doing nothing."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_core.mesh.measurements import sigma
from oven_core.protocol.messages import RunStarted

NEEDS_SECOND: Final = 0.55
"""Confidence of a rule of thumb without measured outcomes: below a specialist's quorum by default."""
STANDS_ALONE: Final = 0.65
"""Confidence of a change that an agent may make alone, even if noise hides most of its effect: above that quorum."""
MARGIN: Final = 0.05
"""Distance of both from the quorum, so that rounding does not decide."""
ENOUGH: Final = 8
"""Measurements needed to estimate a spread."""


def needs_second(run: RunStarted) -> float:
    """Return NEEDS_SECOND, or less if a lower quorum would let a rule of thumb decide alone."""
    below = round(run.rules.specialist_confidence - MARGIN, 3)
    return max(0.0, min(NEEDS_SECOND, below))


def stands_alone(run: RunStarted) -> float:
    """Return STANDS_ALONE, or more if the run's quorum is higher."""
    return min(1.0, max(STANDS_ALONE, round(run.rules.specialist_confidence + MARGIN, 3)))


def confidence(
    window: Window, *, hit_rate: float, target: str, gain: float, horizon: int, back: int | None = None
) -> float:
    """Return `hit_rate`, the share of such changes that helped when their effect was visible, or less if noise will
    hide the gain. Noise alone never lowers it below STANDS_ALONE or the run's quorum.

    An outcome compares the target's mean over the `horizon` ticks before a change with the second half of the `horizon`
    after it. For a rollback to tick `back`, it compares the last `horizon` discarded steps with the same steps the
    second time. The change certainly beat doing nothing from two standard errors on, and has even odds at zero. So a
    share `gain` / (2 · noise) of a gain, in the target's unit, is visible (oven_core.mesh.measurements;
    docs/deciding.md). If the target is measured too rarely to know its noise, the result is `hit_rate`.
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

"""Computes an agent's confidence: the probability that its change has a measurable benefit over no change."""

from __future__ import annotations

import math
from typing import Final

from oven_agents.sdk.window import Window
from oven_core.mesh.measurements import sigma
from oven_core.protocol.messages import RunStarted

TENTATIVE_CONFIDENCE: Final = 0.55
"""Confidence in a rule of thumb without measured outcomes. It is below `rules.quorum_confidence` by default, so the
change needs a second vote that is more confident."""
FIRM_CONFIDENCE: Final = 0.65
"""Confidence of a proposal that may be one of two votes with independent evidence, however confident the second is. It
is above `rules.quorum_confidence` by default."""
MARGIN: Final = 0.05
"""Minimum distance of both constants from `quorum_confidence`, so that rounding does not decide."""
MIN_SAMPLES: Final = 8
"""Minimum number of measurements for an estimate of the noise."""


def tentative_confidence(run: RunStarted) -> float:
    """Return TENTATIVE_CONFIDENCE, or less if it would reach the run's `quorum_confidence`."""
    upper_bound = round(run.rules.quorum_confidence - MARGIN, 3)
    return max(0.0, min(TENTATIVE_CONFIDENCE, upper_bound))


def firm_confidence(run: RunStarted) -> float:
    """Return FIRM_CONFIDENCE, or more if it would not reach the run's `quorum_confidence`."""
    return min(1.0, max(FIRM_CONFIDENCE, round(run.rules.quorum_confidence + MARGIN, 3)))


def estimate_confidence(
    window: Window, *, hit_rate: float, target: str, gain: float, horizon: int, rollback_tick: int | None = None
) -> float:
    """Return `hit_rate`, or less if noise will hide the gain.

    `hit_rate` is the share of similar changes that helped when their effect was visible. Noise alone never lowers the
    result below `firm_confidence`. If the target is measured too rarely to estimate its noise, the result is
    `hit_rate`.

    To measure the outcome of a change, the mesh takes the target's mean over the `horizon` ticks before the change. The
    mesh compares it with the mean over the second half of the `horizon` ticks after the change. For a rollback to
    `rollback_tick`, it compares the last `horizon` discarded steps with the same steps after the rollback. A gain of
    two standard errors or more counts as certain, and no gain as a success in half of all cases. So the visible share
    of a `gain`, in the target's unit, is `gain` / (2 · noise) (oven_core.mesh.measurements; docs/deciding.md)."""
    values = [value for value in window.series(target, after=window.tick - horizon) if math.isfinite(value)]
    if len(values) < min(MIN_SAMPLES, horizon // 2):
        return hit_rate
    count_before, count_after = float(len(values)), max(1.0, len(values) / 2)
    if rollback_tick is not None:
        count_before = count_after = max(1.0, len(values) * min(1.0, (window.tick - rollback_tick) / horizon))
    noise = sigma(values) * math.sqrt(1 / count_before + 1 / count_after)
    visible_share = min(1.0, abs(gain) / (2 * noise)) if noise > 0 else 1.0
    minimum = max(FIRM_CONFIDENCE, min(hit_rate, firm_confidence(window.run)))
    return round(max(minimum, 0.5 + (hit_rate - 0.5) * visible_share), 3)

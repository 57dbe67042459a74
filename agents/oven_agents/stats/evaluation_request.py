"""Requests for a held-out reading before a change.

A loss may jump because of the data, of how it is reported, or of the weights. A reading of the same weights on fixed
data tells them apart. It costs seconds, and the wrong remedy costs steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import stands_alone
from oven_agents.stats.objective import readings
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import Vote

PATIENCE: Final = 5
"""Ticks within which a requested reading must arrive, and for which a reading counts as new."""
GIVEN_UP: Final = 24
"""Ticks after the onset from which no reading is requested."""
ASKS: Final = 2
"""Most requests per onset: with more, one would by chance give the answer that was hoped for."""
TREND: Final = 0.5
"""Share of the last gain between two readings that the next one is expected to continue with."""


@dataclass(frozen=True, slots=True)
class Evidence:
    state: Literal["known", "ask", "wait", "unknown"]
    """`ask`: there is no new reading, and the run can measure one. `unknown`: it cannot, or none came."""
    lost: float = 0.0
    """How much worse than expected the newest reading is, as a share of the one before the onset; 0 or less: not
    worse."""


def held_out_evidence(window: Window, onset: int, answered: int = -1) -> Evidence:
    """Return what held-out readings show about a change that began at tick `onset`. Only readings after `answered`, the
    tick of a remedy, count."""
    before = [reading for reading in readings(window) if reading[0] < onset]
    since = [reading for reading in readings(window) if reading[0] >= onset and reading[0] > answered]
    if not before or (not since and not available(window)):
        return Evidence("unknown")
    requested_at = [r.tick for r in window.applied(EVALUATE) if r.tick >= onset and r.tick > answered]
    if since and (window.is_new(since[-1][0] + PATIENCE - 1) or len(requested_at) >= ASKS):
        return Evidence("known", _lost(before, since[-1]))
    if requested_at and not any(tick > requested_at[-1] for tick, _ in since):
        return Evidence("wait" if window.is_new(requested_at[-1] + PATIENCE - 1) else "unknown")
    return Evidence("ask" if available(window) and window.tick - onset < GIVEN_UP else "unknown")


def available(window: Window) -> bool:
    """Return whether the run measures on request. A person who has to approve should see the remedy itself."""
    return EVALUATE in window.knobs and window.run.rules.autonomy_for(EVALUATE) == "auto"


def is_recent(window: Window) -> bool:
    """Return whether there is a reading of the last PATIENCE ticks."""
    return any(window.is_new(tick + PATIENCE - 1) for tick, _ in readings(window, last=1))


def request_evaluation(window: Window, why: str) -> Vote:
    """Propose to measure, with a confidence that needs no second agent, because it changes nothing."""
    text = f"{why}; a held-out reading tells whether it hurt"
    return window.propose(EVALUATE, None, confidence=stands_alone(window.run), why=text)


def _lost(before: list[tuple[int, float]], newest: tuple[int, float]) -> float:
    (newest_tick, value), (tick, last) = newest, before[-1]
    if not math.isfinite(value) or not last:
        return math.inf
    gain = max(0.0, last - before[-2][1]) / (tick - before[-2][0]) if len(before) > 1 else 0.0
    return (last + TREND * gain * (newest_tick - tick) - value) / abs(last)

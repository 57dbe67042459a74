"""Requests a held-out reading before a change is proposed.

A loss may jump because of the data, the way it is reported, or the weights. A reading on fixed data shows whether the
weights are the cause. It costs seconds, while the wrong remedy costs steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import solo_confidence
from oven_agents.stats.objective import readings
from oven_core.protocol.actuator_names import EVALUATE
from oven_core.protocol.messages import Vote

PATIENCE: Final = 5
"""Ticks to wait for a requested reading. A reading also counts as recent for this long."""
REQUEST_WINDOW: Final = 24
"""Number of ticks after the onset of a suspected change in which a reading may be requested."""
MAX_REQUESTS: Final = 2
"""Maximum number of requests per onset. More requests would make a misleading
reading more likely."""
TREND: Final = 0.5
"""Share of the last improvement per tick that is expected to continue."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of held-out readings for or against a suspected change."""

    state: Literal["known", "ask", "wait", "unknown"]
    """`known`: there is a new reading. `ask`: there is none, but the run can measure one. `wait`: a reading has been
    requested. `unknown`: the run cannot measure one, or none arrived."""
    quality_drop: float = 0.0
    """How much worse than expected the newest reading is, as a share of the last reading before the onset. It is 0 or
    negative if the reading is not worse."""


def held_out_evidence(window: Window, onset: int, last_remedy: int = -1) -> Evidence:
    """Return the evidence of held-out readings about a change that began at tick `onset`. Only readings after the tick
    of the last remedy count."""
    before = [reading for reading in readings(window) if reading[0] < onset]
    since = [reading for reading in readings(window) if reading[0] >= onset and reading[0] > last_remedy]
    if not before or (not since and not can_evaluate(window)):
        return Evidence("unknown")
    requested_at = [r.tick for r in window.applied(EVALUATE) if r.tick >= onset and r.tick > last_remedy]
    if since and (window.is_new(since[-1][0] + PATIENCE - 1) or len(requested_at) >= MAX_REQUESTS):
        return Evidence("known", _quality_drop(before, since[-1]))
    if requested_at and not any(tick > requested_at[-1] for tick, _ in since):
        return Evidence("wait" if window.is_new(requested_at[-1] + PATIENCE - 1) else "unknown")
    return Evidence("ask" if can_evaluate(window) and window.tick - onset < REQUEST_WINDOW else "unknown")


def can_evaluate(window: Window) -> bool:
    """Return whether the run evaluates on request without an operator's approval. Operators are only asked to approve
    remedies."""
    return EVALUATE in window.knobs and window.run.rules.autonomy_for(EVALUATE) == "auto"


def is_recent(window: Window) -> bool:
    """Return whether the newest reading is from the last PATIENCE ticks."""
    return any(window.is_new(tick + PATIENCE - 1) for tick, _ in readings(window, last=1))


def request_evaluation(window: Window, reason: str) -> Vote:
    """Propose an evaluation. It changes nothing, so its confidence is high enough to need no second agent."""
    text = f"{reason}; a held-out reading will show the effect on quality"
    return window.propose(EVALUATE, None, confidence=solo_confidence(window.run), why=text)


def _quality_drop(before: list[tuple[int, float]], newest: tuple[int, float]) -> float:
    """Return how far the newest reading falls short of the expected one, as a share of the last reading before the
    onset."""
    (newest_tick, newest_value), (last_tick, last_value) = newest, before[-1]
    if not math.isfinite(newest_value) or not last_value:
        return math.inf
    gain = max(0.0, last_value - before[-2][1]) / (last_tick - before[-2][0]) if len(before) > 1 else 0.0
    return (last_value + TREND * gain * (newest_tick - last_tick) - newest_value) / abs(last_value)

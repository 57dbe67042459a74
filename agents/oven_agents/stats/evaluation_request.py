"""Requests a held-out reading before a change is proposed.

A loss may jump because of the data, the way it is reported, or the weights. A held-out reading uses fixed data, so it
shows whether the weights are the cause. A reading takes seconds, while a wrong remedy costs many steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence
from oven_agents.stats.objective import readings
from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import Vote

RECENT_TICKS: Final = 5
"""Number of newest ticks in which a reading counts as recent, and in which a request may still be answered."""
REQUEST_TICKS: Final = 24
"""Number of ticks after the onset of a suspected change in which a reading may be requested."""
MAX_REQUESTS: Final = 2
"""Maximum number of requests per onset. With more, a misleading reading would become more likely."""
CONTINUING_SHARE: Final = 0.5
"""Share of the last improvement per tick that is expected to continue."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of held-out readings for or against a suspected change."""

    state: Literal["known", "ask", "wait", "unknown"]
    """`known`: there is a new reading. `ask`: there is none, but the run can measure one. `wait`: a reading has been
    requested. `unknown`: the run cannot measure one, or none arrived."""
    quality_drop: float = 0.0
    """How much worse than expected the newest reading is, as a share of the last reading before the onset."""


def held_out_evidence(window: Window, onset: int, last_remedy: int = -1) -> Evidence:
    """Return the evidence of held-out readings about a change that began at tick `onset`. After the onset, only
    readings newer than tick `last_remedy` count."""
    before = [(tick, value) for tick, value in readings(window) if tick < onset]
    after = [(tick, value) for tick, value in readings(window) if tick >= onset and tick > last_remedy]
    if not before or (not after and not can_evaluate(window)):
        return Evidence("unknown")
    request_ticks = [r.tick for r in window.applied(EVALUATE) if r.tick >= onset and r.tick > last_remedy]
    newest_tick, _ = after[-1] if after else (-1, 0.0)
    if after and (_is_recent(window, newest_tick) or len(request_ticks) >= MAX_REQUESTS):
        return Evidence("known", _quality_drop(before, after[-1]))
    if request_ticks and newest_tick <= request_ticks[-1]:
        return Evidence("wait" if _is_recent(window, request_ticks[-1]) else "unknown")
    return Evidence("ask" if can_evaluate(window) and window.tick - onset < REQUEST_TICKS else "unknown")


def _is_recent(window: Window, tick: int) -> bool:
    """Return whether `tick` is one of the last RECENT_TICKS ticks, not counting those that the agent skipped."""
    return window.is_new(tick + RECENT_TICKS - 1)


def can_evaluate(window: Window) -> bool:
    """Return whether the run evaluates on request without an operator's approval."""
    return EVALUATE in window.knobs and window.run.rules.autonomy_for(EVALUATE) == "auto"


def has_recent_reading(window: Window) -> bool:
    """Return whether the newest reading is from the last RECENT_TICKS ticks."""
    return any(_is_recent(window, tick) for tick, _ in readings(window, last=1))


def request_evaluation(window: Window, reason: str) -> Vote:
    """Propose an evaluation. The proposal is enough alone at this confidence, because an evaluation changes nothing."""
    text = f"{reason}; a held-out reading will show the effect on quality"
    return window.propose(EVALUATE, None, confidence=firm_confidence(window.run), why=text)


def _quality_drop(before: list[tuple[int, float]], newest: tuple[int, float]) -> float:
    """Return how far the newest reading is below the expected one, as a share of the last reading before the onset."""
    newest_tick, newest_value = newest
    last_tick, last_value = before[-1]
    if not math.isfinite(newest_value) or not last_value:
        return math.inf
    gain_per_tick = 0.0
    if len(before) > 1:
        previous_tick, previous_value = before[-2]
        gain_per_tick = max(0.0, last_value - previous_value) / (last_tick - previous_tick)
    expected_value = last_value + CONTINUING_SHARE * gain_per_tick * (newest_tick - last_tick)
    return (expected_value - newest_value) / abs(last_value)

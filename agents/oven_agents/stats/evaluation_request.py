"""Asks for a held-out reading before anything is changed: whether what the gauges of training show hurt the weights.

A loss that jumps may be its data's, its report's, or the weights' doing, and looks the same; the same weights on data
that did not change tell them apart. A measurement costs seconds where the wrong remedy costs steps.
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
"""Ticks in which what was asked for has to be there, and for which a reading is an answer."""
GIVEN_UP: Final = 24
"""Ticks after the beginning, by which somebody who was heard would have an answer."""
ASKS: Final = 2
"""Of one beginning: what asks until it hears what it would like to will hear it."""
TREND: Final = 0.5
"""Of the last gain between two readings, which the next is expected to continue with."""


@dataclass(frozen=True, slots=True)
class Evidence:
    state: Literal["known", "ask", "wait", "unknown"]
    """`ask`: no reading is young enough, and one can be had. `unknown`: none can be had, or none came."""
    lost: float = 0.0
    """How much worse than expected the newest reading is, as a share of the one before the beginning (its unit may be
    another than training's); at most 0: nothing was lost."""


def held_out_evidence(window: Window, onset: int, answered: int = -1) -> Evidence:
    """What held-out readings say of what began at tick `onset`: those that are younger than what was done about it at
    tick `answered`, too."""
    before = [reading for reading in readings(window) if reading[0] < onset]
    since = [reading for reading in readings(window) if reading[0] >= onset and reading[0] > answered]
    if not before or (not since and not available(window)):
        return Evidence("unknown")
    requested_at = [r.tick for r in window.applied(EVALUATE) if r.tick >= onset and r.tick > answered]
    if since and (window.tick - since[-1][0] < PATIENCE or len(requested_at) >= ASKS):
        return Evidence("known", _lost(before, since[-1]))
    if requested_at and not any(tick > requested_at[-1] for tick, _ in since):
        return Evidence("wait" if window.tick - requested_at[-1] < PATIENCE else "unknown")
    return Evidence("ask" if available(window) and window.tick - onset < GIVEN_UP else "unknown")


def available(window: Window) -> bool:
    """Whether the run measures when it is asked to, without a person in between: who has to agree sees the remedy
    itself, and not a question first."""
    return EVALUATE in window.knobs and window.run.rules.autonomy_for(EVALUATE) == "auto"


def is_recent(window: Window) -> bool:
    """Whether there is a reading of the last few ticks."""
    return any(tick > window.tick - PATIENCE for tick, _ in readings(window, last=1))


def request_evaluation(window: Window, why: str) -> Vote:
    """A proposal to measure; sure enough to be measured without a second voice, since it changes nothing."""
    text = f"{why}; a held-out reading tells whether it hurt"
    return window.propose(EVALUATE, None, confidence=stands_alone(window.run), why=text)


def _lost(before: list[tuple[int, float]], newest: tuple[int, float]) -> float:
    (newest_tick, value), (tick, last) = newest, before[-1]
    if not math.isfinite(value) or not last:
        return math.inf
    gain = max(0.0, last - before[-2][1]) / (tick - before[-2][0]) if len(before) > 1 else 0.0
    return (last + TREND * gain * (newest_tick - tick) - value) / abs(last)

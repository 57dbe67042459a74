"""Track advice that waits for an operator's approval: the time left, and when to remind people."""

from __future__ import annotations

from typing import Final

from oven_core.protocol.messages import Decision
from oven_runs.log.run_summary import RunSummary

REMINDER_SHARE: Final = 0.25
"""Remaining share of the approval period at which people are reminded, early enough to act."""


def is_near_end(advice: Decision, tick: int) -> bool:
    """Whether the advice is still open at `tick`, with at most REMINDER_SHARE of its approval period left."""
    ticks_left = advice.expires_at_tick - tick
    return 0 <= ticks_left <= REMINDER_SHARE * (advice.expires_at_tick - advice.tick)


def format_remaining_time(advice: Decision, tick: int, tick_s: float = 0.0) -> str:
    """Format the remaining time for approval: "12 ticks (about 4 min)". `tick_s` is a tick's duration, 0 if unknown."""
    ticks_left = max(0, advice.expires_at_tick - tick)
    ticks = f"{ticks_left} tick{'' if ticks_left == 1 else 's'}"
    seconds = ticks_left * tick_s
    if seconds < 1:
        return ticks
    return f"{ticks} (about {seconds / 60:.0f} min)" if seconds >= 90 else f"{ticks} (about {seconds:.0f} s)"


def pending_advice(summary: RunSummary) -> list[Decision]:
    """Return the advice that can still be approved, sorted by when it lapses."""
    pending = [advice for advice in summary.advised.values() if not summary.has_lapsed(advice)]
    return sorted(pending, key=lambda advice: advice.expires_at_tick)


class Reminders:
    """Selects advice to remind people of. Each piece of advice is selected once, shortly before it lapses."""

    def __init__(self) -> None:
        self._reminded_ids: set[str] = set()

    def select(self, summary: RunSummary) -> list[Decision]:
        """Return the advice that lapses soon and was not selected before. Call this after each observation."""
        if not summary.advised:
            return []
        pending = pending_advice(summary)
        selected = [d for d in pending if d.id not in self._reminded_ids and is_near_end(d, summary.tick)]
        self._reminded_ids &= {d.id for d in pending}
        self._reminded_ids |= {d.id for d in selected}
        return selected

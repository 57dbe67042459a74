"""Advice that waits for a person: when it is said again before it lapses, and in which words. Pure."""

from __future__ import annotations

from typing import Final

from oven_core.protocol.messages import Decision
from oven_runs.log.run_summary import RunSummary

AGAIN: Final = 0.25
"""Share of the ticks for an approval that is left when it is said again: late enough not to repeat what a person
is looking at, and early enough to act."""


def is_near_end(advised: Decision, tick: int) -> bool:
    """Whether it can still be approved at `tick`, and for a quarter of its ticks at most."""
    left = advised.expires_at_tick - tick
    return 0 <= left <= AGAIN * (advised.expires_at_tick - advised.tick)


def remaining(advised: Decision, tick: int, tick_s: float = 0.0) -> str:
    """How long it can still be approved, for people: "12 ticks (about 4 min)"; `tick_s`: seconds of a tick, 0 where
    that is not known."""
    left = max(0, advised.expires_at_tick - tick)
    ticks = f"{left} tick{'' if left == 1 else 's'}"
    seconds = left * tick_s
    if seconds < 1:
        return ticks
    return f"{ticks} (about {seconds / 60:.0f} min)" if seconds >= 90 else f"{ticks} (about {seconds:.0f} s)"


def waiting(view: RunSummary) -> list[Decision]:
    """Advice that can be approved now, what lapses first at the front."""
    return sorted((one for one in view.advised.values() if not view.lapsed(one)), key=lambda one: one.expires_at_tick)


class Reminders:
    """Advice that is to be said again, each once. Ask after each observation."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def due(self, view: RunSummary) -> list[Decision]:
        """What is near its end now, and was not before."""
        if not view.advised:
            return []
        open_now = waiting(view)
        found = [one for one in open_now if one.id not in self._said and is_near_end(one, view.tick)]
        self._said = (self._said & {one.id for one in open_now}) | {one.id for one in found}
        return found

"""Advice that waits for a person: when it is said again before it lapses, and in which words. Pure."""

from __future__ import annotations

from typing import Final

from oven_controller.protocol.messages import Decision

AGAIN: Final = 0.25
"""Share of the ticks for an approval that is left when it is said again: late enough that nobody hears twice of what
they are looking at, and early enough to act."""


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

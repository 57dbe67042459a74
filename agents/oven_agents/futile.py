"""Whether the run went back often enough already without getting better by it."""

from __future__ import annotations

from typing import Final

from oven_agents.objective import readings
from oven_agents.window import Window

ROLLBACK: Final = "run.rollback"
LIMIT: Final = 3


def futile(window: Window) -> bool:
    """Whether LIMIT rollbacks, whoever's, led to no new best held-out reading: another would be more of the same. False
    where nothing is held out."""
    seen = readings(window)
    if not seen:
        return False
    best = max(seen, key=lambda reading: reading[1])[0]
    return sum(receipt.tick > best for receipt in window.applied(ROLLBACK)) >= LIMIT

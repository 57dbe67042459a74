"""Requests the held-out evaluations that the outcome of an applied decision needs.

The mesh compares a decision's target before the change with the second half of its horizon (oven_core.mesh.outcomes).
It needs several readings on each side, but many runs evaluate less often. So the missing ones are requested, spread
over that half. A run that evaluates its initial weights also gets the readings before its first decision. The budget is
a few evaluations, plus one per `TICKS_PER_EVALUATION` ticks, because an evaluation may be slow.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from oven_core.protocol.actuators import EVALUATE
from oven_core.protocol.messages import Decision
from oven_core.protocol.rules import Rules

TICKS_PER_EVALUATION: Final = 20
"""Ticks of the run that pay for one requested evaluation, in addition to the first `rules.outcome_samples`."""
INITIAL_INTERVAL: Final = 2
"""Ticks between the first readings, which are early because agents may propose a change after a few ticks."""


@dataclass(slots=True)
class _Need:
    """The readings that the outcome of one decision needs after tick `start`."""

    start: int
    due_ticks: list[int]
    """Ticks by which the first, second, … reading after `start` must have been measured."""


class OutcomeReadings:
    """The evaluations that applied decisions need. Every rank calls each method at the same steps."""

    def __init__(self, rules: Rules, held_out: Collection[str]) -> None:
        """`held_out` are the names of the held-out metrics."""
        self._samples, self._held_out = rules.outcome_samples, frozenset(held_out)
        self._is_allowed = rules.autonomy_for(EVALUATE) == "auto"
        self._needs: dict[str, _Need] = {}  # by target, because a newer change with the same target ends the window
        self._reading_ticks: list[int] = []
        self._request_count = 0

    def add(self, decision: Decision, tick: int) -> None:
        """Plan the readings for a decision that was applied at `tick`."""
        if not self._is_allowed or decision.target not in self._held_out or not decision.horizon:
            return
        start = tick + decision.horizon // 2
        interval = (decision.horizon - decision.horizon // 2) / self._samples
        due_ticks = [start + round(interval * count) for count in range(1, self._samples + 1)]
        self._needs[decision.target] = _Need(start, due_ticks)

    def record(self, tick: int) -> None:
        """Record that the held-out metrics were measured at `tick`."""
        if not self._reading_ticks and tick <= 1 and self._is_allowed:
            due_ticks = [tick + INITIAL_INTERVAL * count for count in range(self._samples)]
            self._needs[""] = _Need(tick - 1, due_ticks)
        self._reading_ticks.append(tick)

    def take_request(self, tick: int) -> bool:
        """Return whether the next step must be evaluated. The budget is then charged."""
        if self._request_count >= self._samples + tick // TICKS_PER_EVALUATION:
            return False
        for target, need in list(self._needs.items()):
            count = sum(reading > need.start for reading in self._reading_ticks)
            if count >= len(need.due_ticks):
                del self._needs[target]
            elif tick >= need.due_ticks[count]:
                self._request_count += 1
                return True
        return False

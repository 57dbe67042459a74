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
"""Ticks of the process that pay for one requested evaluation, in addition to the first `rules.outcome_samples`."""
INITIAL_INTERVAL: Final = 2
"""Ticks between the first readings, which are early because agents may propose a change after a few ticks."""


@dataclass(slots=True)
class _Need:
    """The readings that the outcome of one decision needs after tick `start`."""

    start: int
    due_ticks: list[int]
    """Ticks by which the missing readings must have been measured, in order."""


class OutcomeReadings:
    """The evaluations that applied decisions need. Every rank calls each method at the same steps."""

    def __init__(self, rules: Rules, held_out: Collection[str], first_tick: int = 0) -> None:
        """`rules` must be the same on all ranks, because they evaluate together. `held_out` are the names of the
        held-out metrics. `first_tick` is the tick at which this process starts, or resumes an earlier one."""
        self._samples, self._held_out, self._first_tick = rules.outcome_samples, frozenset(held_out), first_tick
        self._is_allowed = rules.autonomy_for(EVALUATE) == "auto"
        self._needs: dict[str, _Need] = {}  # by target, because a newer change with the same target ends the window
        self._has_readings = self._awaits_reading = False
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
        if not self._has_readings and tick <= 1 and self._is_allowed:
            self._needs[""] = _Need(tick, [tick + INITIAL_INTERVAL * count for count in range(1, self._samples)])
        self._has_readings, self._awaits_reading = True, False
        for need in self._needs.values():
            if tick > need.start:
                del need.due_ticks[:1]
        self._needs = {target: need for target, need in self._needs.items() if need.due_ticks}

    def take_request(self, tick: int) -> bool:
        """Return whether the next step must be evaluated. The budget is then charged. There are no more requests until
        the requested evaluation has been recorded."""
        if not self._needs:
            return False
        budget = self._samples + (tick - self._first_tick) // TICKS_PER_EVALUATION
        if self._awaits_reading or self._request_count >= budget:
            return False
        self._awaits_reading = any(tick >= need.due_ticks[0] for need in self._needs.values())
        self._request_count += self._awaits_reading
        return self._awaits_reading

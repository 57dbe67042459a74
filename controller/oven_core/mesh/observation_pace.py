"""Ticks in a length of time, by the times at which the log stored the newest observations.

The mesh has no clock. What a rule says in minutes becomes ticks when a decision is made, and ticks are what every
reader counts afterwards. The times come from the log, so each replica, and each replay, finds the same number.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

KEPT: Final = 50
"""Gaps between observations whose median is the pace: an evaluation or a pause among them does not move it."""
LEAST_S: Final = 0.001
"""Seconds. Observations that piled up while the bus was away were stored closer together than they were made."""


@dataclass
class ObservationPace:
    """Give it the time of each new tick's observation. Two that were given the same are equal."""

    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _last: float | None = None

    def add(self, stored: float) -> None:
        """`stored`: seconds, of any beginning."""
        if self._last is not None and stored - self._last >= LEAST_S:
            self._gaps.append(stored - self._last)
        self._last = stored

    def restart(self) -> None:
        """The learner starts again: the time until its first observation is not a step."""
        self._last = None

    def ticks(self, minutes: float) -> int:
        """Those that will last so long at the median pace, rounded up; 0 before there is any pace."""
        if not self._gaps or minutes <= 0:
            return 0
        return math.ceil(minutes * 60 / sorted(self._gaps)[len(self._gaps) // 2])

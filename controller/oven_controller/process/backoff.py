"""Exponential back-off for restarts of a process that died, as arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """The policy, in seconds. A process that was well for `well_s` before it died begins anew at `first_s`."""

    first_s: float = 0.25
    factor: float = 2.0
    cap_s: float = 10.0
    well_s: float = 30.0
    most: int = 8
    """Deaths in a row after which it is given up."""

    def delay_s(self, failures: int) -> float | None:
        """How long to wait after the so-many-th death in a row (1 is the first); None: give it up."""
        if failures >= self.most:
            return None
        delay = self.first_s
        for _ in range(failures - 1):
            delay = min(self.cap_s, delay * self.factor)
        return min(self.cap_s, delay)

    def failures(self, before: int, well_s: float) -> int:
        """Deaths in a row, this one included, of a process that had been well for `well_s` after `before` of them."""
        return 1 if well_s >= self.well_s else before + 1

"""Rate-limited logging of bus outages."""

from __future__ import annotations

import logging
import time

from oven_core.errors import OvenError, reason

log = logging.getLogger("oven.learner")

REPEAT_S = 60.0


class OutageLog:
    """Logs why the log takes no messages: each reason once, and again after a minute."""

    def __init__(self) -> None:
        self._began = self._logged_at = 0.0
        self._logged_reasons: set[str] = set()

    def record(self, error: BaseException, waiting: int) -> None:
        """Note a failed attempt, and how many messages wait."""
        now, why = time.monotonic(), reason(error)
        self._began = self._began or now
        if why not in self._logged_reasons or now >= self._logged_at + REPEAT_S:
            self._logged_reasons.add(why)
            self._logged_at = now
            since = now - self._began
            trace = None if isinstance(error, OvenError) else error  # a bug of ours
            log.warning("%s (for %.0f s; %d messages wait); training continues", why, since, waiting, exc_info=trace)

    def recovered(self, dropped: int) -> None:
        """Note that the log takes messages again. `dropped`: observations dropped so far."""
        if self._began:
            since = time.monotonic() - self._began
            log.warning("the log takes messages again after %.1f s; %d observations were dropped", since, dropped)
            self._began, self._logged_reasons = 0.0, set()

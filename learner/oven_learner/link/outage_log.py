"""Rate-limited logging of bus outages."""

from __future__ import annotations

import logging
import time

from oven_core.errors import OvenError, reason

log = logging.getLogger("oven.learner")

SAY_AGAIN_S = 60.0


class OutageLog:
    """Logs what keeps the log from taking messages: each reason once, and again after a minute."""

    def __init__(self) -> None:
        self._began = self._said_at = 0.0
        self._said: set[str] = set()

    def record(self, error: BaseException, waiting: int) -> None:
        """An attempt failed, while so many messages wait."""
        now, why = time.monotonic(), reason(error)
        self._began = self._began or now
        if why not in self._said or now >= self._said_at + SAY_AGAIN_S:
            self._said.add(why)
            self._said_at = now
            since = now - self._began
            trace = None if isinstance(error, OvenError) else error  # a fault of our own
            log.warning("%s (for %.0f s; %d messages wait); training continues", why, since, waiting, exc_info=trace)

    def recovered(self, dropped: int) -> None:
        """The log takes messages again, if it did not; so many observations were dropped altogether."""
        if self._began:
            since = time.monotonic() - self._began
            log.warning("the log takes messages again after %.1f s; %d observations were dropped", since, dropped)
            self._began, self._said = 0.0, set()

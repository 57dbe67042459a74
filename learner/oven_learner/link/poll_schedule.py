"""Decides when the relay thread of `process_link` polls for messages, based on the times of earlier messages."""

from __future__ import annotations

DUE_PAUSE_S = 0.0005
"""Seconds that the relay sleeps while a message is due."""
MAX_SHORT_PAUSES = 10
"""Maximum number of consecutive short pauses. If the message is still not there, the pace of training has changed, and
the relay sleeps for its usual pause again."""
LEAD_S = 0.0005
"""Seconds before a message is due at which the relay begins to poll, because steps are not perfectly regular."""
NEWEST_WEIGHT = 0.25
"""Weight of the newest interval in the running mean of intervals."""


class PollSchedule:
    """The pauses between the relay's polls: long between steps, and short when a step is about to end. Frequent polls
    would take the interpreter away from the training thread, but a message that waits for a poll delays its decision.
    The schedule does not read a clock."""

    def __init__(self, idle_pause_s: float) -> None:
        """`idle_pause_s` is the pause while nothing is due."""
        self._idle_pause_s = idle_pause_s
        self._last_sent: float | None = None
        self._period_s: float | None = None
        self._short_pauses = 0

    def record_message(self, sent_s: float) -> None:
        """Record the time in seconds at which a message was sent."""
        interval = sent_s - self._last_sent if self._last_sent is not None else 0.0
        if interval > 2 * DUE_PAUSE_S:  # otherwise, it is a receipt of the same step
            period = self._period_s
            self._period_s = interval if period is None else period + NEWEST_WEIGHT * (interval - period)
        self._last_sent, self._short_pauses = sent_s, 0

    def pause_s(self, now_s: float) -> float:
        """Return the pause before the next poll, in seconds."""
        if self._last_sent is None or self._period_s is None or self._idle_pause_s <= DUE_PAUSE_S:
            return self._idle_pause_s
        due_in_s = self._last_sent + self._period_s - LEAD_S - now_s
        if due_in_s > self._idle_pause_s + DUE_PAUSE_S:
            return self._idle_pause_s
        if due_in_s > 0:
            return due_in_s
        self._short_pauses += 1
        return DUE_PAUSE_S if self._short_pauses <= MAX_SHORT_PAUSES else self._idle_pause_s

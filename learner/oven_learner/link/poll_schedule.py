"""Decides when the relay thread of `process_link` polls for messages, based on the times of earlier messages."""

from __future__ import annotations

from typing import Final

LAG_S: Final = 0.0005
"""Seconds after a step has probably ended at which the relay polls, because steps are not perfectly regular. A poll
that comes too early delays the training thread as much as one that finds a message. It is also the shortest pause."""
NEWEST_WEIGHT: Final = 0.25
"""Weight of the newest steps in the running means."""
STEADY_SHARE: Final = 0.1
"""Maximum mean deviation of steady steps from their mean duration, as a share of it."""


class PollSchedule:
    """The pauses between the relay's polls: with steady steps longer than the usual pause, one poll just after each
    has probably ended. Frequent polls would take the interpreter away from the training thread, but a message that
    waits for a poll delays its decision. The schedule does not read a clock."""

    def __init__(self, usual_pause_s: float) -> None:
        """`usual_pause_s` is the pause while the end of a step cannot be predicted, or steps are shorter than this."""
        self._usual_pause_s = usual_pause_s
        self._last_sent: float | None = None
        self._step_s: float | None = None
        self._deviation_s = 0.0
        self._overdue_pause_s = LAG_S

    def record_steps(self, sent_s: float, count: int) -> None:
        """Record the time in seconds at which the last of `count` new observations was sent."""
        if self._last_sent is not None:
            newest = (sent_s - self._last_sent) / count
            if self._step_s is None:
                self._step_s = self._deviation_s = newest  # a single step is not steady yet
            change = newest - self._step_s
            self._step_s += NEWEST_WEIGHT * change
            self._deviation_s += NEWEST_WEIGHT * (abs(change) - self._deviation_s)
        self._last_sent, self._overdue_pause_s = sent_s, LAG_S

    def pause_s(self, now_s: float) -> float:
        """Return the pause before the next poll, in seconds: at most four usual pauses."""
        if self._last_sent is None or self._step_s is None or self._step_s <= self._usual_pause_s:
            return self._usual_pause_s
        if self._deviation_s > STEADY_SHARE * self._step_s:
            return self._usual_pause_s
        poll_in_s = self._last_sent + self._step_s + LAG_S - now_s
        if poll_in_s > 2 * self._usual_pause_s:
            return min(poll_in_s / 2, 4 * self._usual_pause_s)
        if poll_in_s > 0:
            return poll_in_s
        pause_s = min(self._overdue_pause_s, self._usual_pause_s)
        self._overdue_pause_s = 2 * pause_s  # the pace of training has changed
        return pause_s

"""A queue of notices for one recipient, with rate limits. This module does no I/O: callers pass the time.

Each message contains all queued notices. A notice is sent at once unless a message in the last minute had its kind. In
that case it waits for the minute to end, or for a notice of another kind. Times are in seconds since 1970. Messages
are not delayed if the clock is set back.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from oven_controller.notify.message import Notice
from oven_runs.settings.notifications import SEVERITIES, Kind

GAP_S: Final = 60.0
"""Minimum seconds between two messages with the same kinds of notices, and after a failure. Chat services limit the
rate, and people can read about one message per minute."""
FINAL_KINDS: Final[tuple[Kind, ...]] = ("ended", "died")
"""Kinds of notices about the end of a run."""
MAX_WAITING: Final = 20
"""Maximum number of queued notices. If there are more, the oldest of the least severe ones are only counted."""
MAX_KEYS: Final = 256
"""Number of latest notice keys to remember."""


class Outbox(BaseModel):
    """The queue of notices for one recipient. The notifier saves it in its state file."""

    waiting: list[Notice] = Field(default_factory=list)
    """The queued notices, oldest first."""
    omitted: int = 0
    """Number of notices that were dropped from the queue and only counted."""
    sent_at: dict[Kind, float] = Field(default_factory=dict)
    """For each kind of notice, the time of the last message that contained one."""
    failed_at: float | None = None
    """The time of the last failure, or None if the last message was delivered."""
    keys: list[str] = Field(default_factory=list)
    """Keys of the latest notices, to prevent duplicates."""

    def add(self, notice: Notice) -> None:
        """Queue a notice unless it is a duplicate."""
        if notice.key in self.keys:
            return
        self.keys = [*self.keys, notice.key][-MAX_KEYS:]
        self.waiting.append(notice)
        if len(self.waiting) > MAX_WAITING:
            self.waiting.remove(min(self.waiting, key=_priority))
            self.omitted += 1

    def count(self) -> int:
        """Return the number of unsent notices."""
        return len(self.waiting) + self.omitted

    def next_batch(self, now: float) -> list[Notice]:
        """Return the notices for the next message, or an empty list if no message may be sent now. The last notice is
        shown in full: the end of the run, or otherwise the most severe notice."""
        if _is_recent(self.failed_at, now):
            return []
        if all(_is_recent(self.sent_at.get(notice.kind), now) for notice in self.waiting):
            return []
        return sorted(self.waiting, key=_priority)

    def mark_sent(self, notices: list[Notice], omitted: int, now: float) -> None:
        """Remove the delivered notices."""
        self.failed_at = None
        self.waiting = [notice for notice in self.waiting if notice not in notices]
        self.omitted -= omitted
        self.sent_at.update({notice.kind: now for notice in notices})


def _priority(notice: Notice) -> tuple[bool, int]:
    """Return a sort key. The end of a run has the highest priority, because its message may be the last one."""
    return notice.kind in FINAL_KINDS, SEVERITIES.index(notice.severity)


def _is_recent(time: float | None, now: float) -> bool:
    return time is not None and time <= now < time + GAP_S

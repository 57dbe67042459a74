"""The queue of notices for one recipient, with rate limits. No I/O: callers pass the time.

A message has all queued notices. Afterwards a notice of one of its kinds waits for a minute, or for the next message of
another kind. Times are in seconds since 1970. Setting the clock back delays no message.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from oven_controller.notify.message import Notice
from oven_runs.settings.notifications import SEVERITIES, Kind

GAP_S: Final = 60.0
"""Minimum seconds between two messages of a kind, and after a failure. People read about one per minute, and services
limit senders."""
FINAL_KINDS: Final[tuple[Kind, ...]] = ("ended", "died")
MAX_WAITING: Final = 20
"""Maximum queued notices. Beyond it, the oldest of the least severe ones are only counted."""
REMEMBERED_KEYS: Final = 256


class Outbox(BaseModel):
    """The queue of one recipient. The notifier writes it to the cursor file."""

    waiting: list[Notice] = Field(default_factory=list)
    """The queued notices, oldest first."""
    omitted: int = 0
    """Number of notices that were dropped from the queue and are only counted."""
    sent_at: dict[Kind, float] = Field(default_factory=dict)
    failed_at: float | None = None
    keys: list[str] = Field(default_factory=list)
    """Keys of the newest notices, to prevent duplicates."""

    def add(self, notice: Notice) -> None:
        """Queue a notice unless it was queued before."""
        if notice.key in self.keys:
            return
        self.keys = [*self.keys, notice.key][-REMEMBERED_KEYS:]
        self.waiting.append(notice)
        if len(self.waiting) > MAX_WAITING:
            self.waiting.remove(min(self.waiting, key=_weight))
            self.omitted += 1

    def count(self) -> int:
        """Return the number of unsent notices."""
        return len(self.waiting) + self.omitted

    def due(self, now: float) -> list[Notice]:
        """Return the notices for the next message, the leading one last; empty if none may be sent now.

        The end of the run leads, or otherwise the most severe notice.
        """
        if _recent(self.failed_at, now) or all(_recent(self.sent_at.get(n.kind), now) for n in self.waiting):
            return []
        return sorted(self.waiting, key=_weight)

    def sent(self, notices: list[Notice], omitted: int, now: float) -> None:
        """Remove the delivered notices."""
        self.failed_at = None
        self.waiting = [n for n in self.waiting if n not in notices]
        self.omitted -= omitted
        self.sent_at.update({notice.kind: now for notice in notices})


def _weight(notice: Notice) -> tuple[bool, int]:
    """Return a sort key. A run's end leads, because its message may be the last one."""
    return notice.kind in FINAL_KINDS, SEVERITIES.index(notice.severity)


def _recent(since: float | None, now: float) -> bool:
    return since is not None and since <= now < since + GAP_S

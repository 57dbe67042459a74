"""Notices that wait for one recipient, and when they may be sent. Pure: callers pass the time.

A recipient gets at most one message of a kind per minute. Notices that arrive in between are merged into the next one.
Times are in seconds since 1970. A clock that was set back delays no message.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from oven_controller.notify.message import LISTED, Notice
from oven_runs.settings.notifications import SEVERITIES, Kind

GAP_S: Final = 60.0
"""Between two messages of a kind, and after a failure. People read about one a minute, and services limit senders."""
FINAL_KINDS: Final[tuple[Kind, ...]] = ("ended", "died")
"""These may be a run's last message, so it includes the waiting notices of all other kinds."""
REMEMBERED_KEYS: Final = 256


class Outbox(BaseModel):
    """The state for one recipient, which the notifier writes to the cursor file."""

    waiting: list[Notice] = Field(default_factory=list)
    """Oldest first, at most LISTED of a kind."""
    omitted: dict[Kind, int] = Field(default_factory=dict)
    """Older notices of a kind that were only counted."""
    sent_at: dict[Kind, float] = Field(default_factory=dict)
    failed_at: float | None = None
    keys: list[str] = Field(default_factory=list)
    """Keys of the newest notices, which rule out duplicates."""

    def add(self, notice: Notice) -> None:
        """Queue a notice unless it was queued before."""
        if notice.key in self.keys:
            return
        self.keys = [*self.keys, notice.key][-REMEMBERED_KEYS:]
        self.waiting.append(notice)
        same_kind = [n for n in self.waiting if n.kind == notice.kind]
        if len(same_kind) > LISTED:
            self.waiting.remove(same_kind[0])
            self.omitted[notice.kind] = self.omitted.get(notice.kind, 0) + 1

    def count(self) -> int:
        """Notices that were not sent."""
        return len(self.waiting) + sum(self.omitted.values())

    def wait_s(self, now: float) -> float | None:
        """Seconds until the next message may be sent; None if nothing waits."""
        if not self.waiting:
            return None
        gap = min(_rest_of_gap(self.sent_at.get(notice.kind), now) for notice in self.waiting)
        return max(gap, _rest_of_gap(self.failed_at, now))

    def due(self, now: float) -> list[Notice]:
        """The notices for the next message, the leading one last; empty if none may be sent now.

        The most severe kind goes first, and among equals the one that has waited longest.
        """
        if self.wait_s(now) != 0:
            return []
        allowed = [n for n in self.waiting if not _rest_of_gap(self.sent_at.get(n.kind), now)]
        kind = max(allowed, key=lambda n: SEVERITIES.index(n.severity)).kind
        lead = [n for n in self.waiting if n.kind == kind]
        return [n for n in self.waiting if n.kind != kind] + lead if kind in FINAL_KINDS else lead

    def omitted_with(self, notices: list[Notice]) -> int:
        """Count the omitted notices that a message with these notices stands for."""
        return sum(self.omitted.get(kind, 0) for kind in {n.kind for n in notices})

    def sent(self, notices: list[Notice], now: float) -> None:
        """Remove what arrived."""
        self.failed_at = None
        self.waiting = [n for n in self.waiting if n not in notices]
        for kind in {n.kind for n in notices}:
            self.sent_at[kind] = now
            self.omitted.pop(kind, None)

    def failed(self, now: float) -> None:
        """Keep the notices, and leave the recipient alone for GAP_S."""
        self.failed_at = now


def _rest_of_gap(since: float | None, now: float) -> float:
    return max(0.0, since + GAP_S - now) if since is not None and since <= now else 0.0

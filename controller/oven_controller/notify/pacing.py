"""How often one address gets a message: a state machine with injected time. Pure.

At most one message of a kind in GAP_S, attempts that failed among them. What comes meanwhile is merged into the next
one: counted, and the newest of it told. Nothing is lost, and what is kept is bounded: a few notices of each kind.

Time is seconds since 1970. A clock that is set back delays no message by more than GAP_S.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import BaseModel, Field

from oven_controller.notify.message import TOLD, Message, Notice, message
from oven_runs.settings.notifications import KINDS, SEVERITIES, Kind

GAP_S: Final = 60.0
"""Seconds between two messages of a kind to one address: a person reads one a minute, and services limit senders."""
LONGEST_S: Final = 3600.0
"""Seconds that an address may ask to be left alone for at most (Retry-After)."""
LAST_WORDS: Final[tuple[Kind, ...]] = ("ended", "died")
"""After these nothing may come, so what waits of other kinds goes with them."""
REMEMBERED: Final = 256
"""Keys of the newest notices, by which one that comes again is known."""


class Bucket(BaseModel):
    """Notices of one kind that wait."""

    count: int = 0
    since: datetime | None = None
    """When the first of them was logged."""
    newest: list[Notice] = Field(default_factory=list)

    def add(self, notice: Notice) -> None:
        self.count += 1
        self.since = self.since or notice.time
        self.newest = [*self.newest, notice][-TOLD:]

    def before(self, older: Bucket) -> None:
        """Take in what came before, and could not be sent or did not have its turn."""
        self.count += older.count
        self.since = min((since for since in (older.since, self.since) if since is not None), default=None)
        self.newest = [*older.newest, *self.newest][-TOLD:]


class PacerState(BaseModel):
    """All that a pacer knows: what is written down, so that the next process continues with it."""

    waiting: dict[Kind, Bucket] = Field(default_factory=dict)
    attempted: dict[Kind, float] = Field(default_factory=dict)
    """When a message of the kind was last sent, or tried."""
    resting_until: float = 0.0
    """No attempt at all before: the last one failed."""
    sending: Bucket | None = None
    """What is on its way."""
    keys: list[str] = Field(default_factory=list)


class Pacer:
    """One address's messages. `take` a message, send it, and say `sent` or `failed`; one at a time."""

    def __init__(self, run: str, state: PacerState | None = None) -> None:
        self._run = run
        self.state = state or PacerState()

    def offer(self, notice: Notice) -> bool:
        """Have it sent. False where it was offered before."""
        state = self.state
        if notice.key in state.keys:
            return False
        state.keys = [*state.keys, notice.key][-REMEMBERED:]
        state.waiting.setdefault(notice.kind, Bucket()).add(notice)
        return True

    @property
    def waiting(self) -> int:
        """Notices that were not sent, those on their way among them."""
        return sum(bucket.count for bucket in self.state.waiting.values()) + (
            self.state.sending.count if self.state.sending else 0
        )

    def take(self, now: float) -> Message | None:
        """The next message that may be sent now: the most severe, of equal ones the oldest; the last word of a run
        takes along all that waits. None where there is none."""
        state = self.state
        due = [kind for kind in state.waiting if now >= self._due(kind, now)]
        if state.sending is not None or not due or now < self._rested(now):
            return None
        kind = min(due, key=self._urgency)
        bucket = state.waiting.pop(kind)
        if kind in LAST_WORDS:
            for other in sorted(state.waiting, key=self._urgency):
                bucket.before(state.waiting.pop(other))
        state.sending, state.attempted[kind] = bucket, now
        assert bucket.since is not None
        return message(self._run, bucket.newest, bucket.count, bucket.since)

    def wait_s(self, now: float) -> float | None:
        """Seconds until a message may be due; None: until a notice is offered, or the message on its way has come."""
        if self.state.sending is not None or not self.state.waiting:
            return None
        first = min(self._due(kind, now) for kind in self.state.waiting)
        return max(0.0, max(first, self._rested(now)) - now)

    def sent(self) -> None:
        """The message that was taken has arrived."""
        self.state.sending = None

    def failed(self, now: float, rest_s: float = 0.0) -> None:
        """It has not: it is merged into the next one of its kind. `rest_s`: how long the address asks to be left
        alone."""
        state = self.state
        assert state.sending is not None
        kind = state.sending.newest[-1].kind
        state.waiting.setdefault(kind, Bucket()).before(state.sending)
        state.sending = None
        state.resting_until = now + min(LONGEST_S, max(GAP_S, rest_s))

    def in_doubt(self) -> list[Notice]:
        """The newest of what was on its way when the last process ended: it may have arrived, so it is not sent
        again."""
        bucket, self.state.sending = self.state.sending, None
        return bucket.newest if bucket is not None else []

    def _due(self, kind: Kind, now: float) -> float:
        at = self.state.attempted.get(kind)
        return 0.0 if at is None or at > now else at + GAP_S

    def _rested(self, now: float) -> float:
        until = self.state.resting_until
        return until if until - now <= LONGEST_S else 0.0

    def _urgency(self, kind: Kind) -> tuple[int, datetime, int]:
        bucket = self.state.waiting[kind]
        worst = max(SEVERITIES.index(notice.severity) for notice in bucket.newest)
        assert bucket.since is not None
        return -worst, bucket.since, KINDS.index(kind)

"""How often state may be copied so that it costs a stated share of wall time, whatever a copy costs: arithmetic alone.

A token bucket (RFC 2697's meter, with seconds for bytes): seconds to spend come in at `SHARE` of the seconds that pass,
and a copy is due when what is expected of it is there. A copy that took longer than expected leaves a debt, which is
paid off first; so over any run the copies take at most `SHARE` of it, a stated credit, and one misjudged copy.
"""

from __future__ import annotations

SHARE = 0.02
"""Of wall time, for snapshots in memory and for the checkpoints that are taken for rollback alike."""
KEPT_COPIES = 2.0
"""No more than so many copies' worth is saved up: an hour on hold does not bring a burst."""


class SnapshotTimeBudget:
    """Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float, *, expected: float = 0.0, credit: float = 0.0) -> None:
        """`expected`: what the first copy will cost, as far as one knows. `credit`: seconds in hand at the start."""
        self.expected = expected
        self.spent = 0.0
        """Seconds that copies have taken so far, those apart that the user asked for."""
        self._in_hand = self._credit = credit
        self._at = now
        self.copies = 0
        """How many those were."""

    def wait(self, now: float) -> float:
        """Seconds until a copy is due; 0 when it is."""
        self._accrue(now)
        return max(0.0, self.expected - self._in_hand) / SHARE

    def took(self, began: float, ended: float, *, own: bool = True) -> None:
        """A copy was taken. One that the user's settings asked for is not charged, but it is as good as ours: the next
        is due a whole interval later."""
        self._accrue(ended)
        cost = max(0.0, ended - began)
        if own:
            self.spent += cost
            self._in_hand -= cost
            self.copies += 1
        else:
            self._in_hand = min(self._in_hand, 0.0)
        self.expected = max(cost, self.spent / self.copies if self.copies else 0.0)

    def _accrue(self, now: float) -> None:
        most = max(self._credit, self._in_hand, KEPT_COPIES * self.expected)
        self._in_hand = min(most, self._in_hand + SHARE * max(0.0, now - self._at))
        self._at = max(self._at, now)

"""Gaps in the numbering of learner messages: n counts up by one in each incarnation."""

from __future__ import annotations

from dataclasses import dataclass, field

from oven_core.protocol.messages import LearnerMessage, RunEnded, RunStarted


@dataclass(frozen=True, slots=True)
class Hole:
    """Messages `first` to `last` of an incarnation are not in the log."""

    incarnation: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class Numbering:
    """Feed it the learner's messages in the log's order. One that comes twice is none."""

    holes: list[Hole] = field(default_factory=list)
    ended: bool = False
    """The last incarnation has said its last word."""
    dropped: int = 0
    """Observations that incarnations said themselves they had to drop, when they ended."""
    _last: tuple[int, int] | None = None

    def take(self, body: LearnerMessage) -> None:
        if self._last is not None and (body.incarnation, body.n) <= self._last:
            return
        if self._last is not None and self._last[0] == body.incarnation and body.n > self._last[1] + 1:
            self.holes.append(Hole(body.incarnation, self._last[1] + 1, body.n - 1))
        self._last = (body.incarnation, body.n)
        if isinstance(body, RunEnded):
            self.ended = True
            self.dropped += body.dropped_observations
        elif isinstance(body, RunStarted):
            self.ended = False

    @property
    def missing(self) -> int:
        """Messages that are not in the log, and that no one said had been dropped."""
        return max(0, sum(map(len, self.holes)) - self.dropped)

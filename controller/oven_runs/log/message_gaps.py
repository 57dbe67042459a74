"""Find missing learner messages by gaps in their numbers. Each incarnation (start of the learner) counts from 0."""

from __future__ import annotations

from dataclasses import dataclass, field

from oven_core.protocol.messages import LearnerMessage, RunEnded, RunStarted


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of missing messages of one incarnation, from number `first` to `last`."""

    incarnation: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class GapFinder:
    """Finds gaps in the learner's messages. Pass them to `feed` in log order. Duplicates are ignored."""

    gaps: list[Gap] = field(default_factory=list)
    has_ended: bool = False
    """Whether the last incarnation has ended."""
    dropped_count: int = 0
    """Number of dropped observations, as the learner reported them at the end of each incarnation."""
    _incarnation: int = -1  # of the last message
    _number: int = -1

    def feed(self, body: LearnerMessage) -> None:
        """Add the next message."""
        if (body.incarnation, body.n) <= (self._incarnation, self._number):
            return
        if body.incarnation == self._incarnation and body.n > self._number + 1:
            self.gaps.append(Gap(body.incarnation, self._number + 1, body.n - 1))
        self._incarnation, self._number = body.incarnation, body.n
        if isinstance(body, RunEnded):
            self.has_ended = True
            self.dropped_count += body.dropped_observations
        elif isinstance(body, RunStarted):
            self.has_ended = False

    @property
    def missing_count(self) -> int:
        """Number of messages that are not in the log and were not reported as dropped."""
        return max(0, sum(map(len, self.gaps)) - self.dropped_count)

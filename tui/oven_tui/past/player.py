"""The player of a recorded run: the live monitor's fold at any event of the log.

The view at an event is the fold of all events up to it, in either direction of play. To go back, the player starts at
the newest checkpoint before the target and folds on from there. The player has no clock: the caller says how much time
has passed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.reader import Checkpoint, DecisionPosition, Fold, Frame, Preview, Progress, Whole

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
PIECE = 500
"""Events to fold between two checks for keys: about 50 ms."""
START_EVENTS = 1000
"""The most events before a run's start: a few for each agent that joins."""
LONGEST_GAP_S = 30.0
"""Longest wait for an event, in the log's own time. A night between two incarnations is cut to it."""


class Player:
    """Plays a log. Pass it the frames of a reading with checkpoints; it can go to any place that was read."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises ConfigError for damaged keys."""
        self._folder = folder
        self.speed = 1.0
        self.checkpoints: list[Checkpoint] = []
        self.decisions: list[DecisionPosition] = []
        """The decisions that were read, in order."""
        self.share = 0.0
        """The share of the log that was read."""
        self.last: tuple[int, int, int] = (0, 0, 0)
        """Sequence, tick and step of the log's end."""
        self.whole = False
        """Whether the whole log was read."""
        self.clock: datetime | None = None
        """The playing position in the log's own time."""
        self._ahead: Event | None = None
        self._go_on(Fold.empty(folder))

    def take(self, frame: Frame) -> None:
        match frame:
            case Preview(view):
                self.last = (view.run.seq, view.run.tick, view.run.step)
            case Progress(share):
                self.share = share
            case Checkpoint():
                self.checkpoints.append(frame)
                self.decisions += frame.decisions
            case Whole(fold):
                self.decisions += frame.decisions
                run = fold.view.run
                self.last, self.share, self.whole = (run.seq, run.tick, run.step), 1.0, True

    @property
    def view(self) -> MonitorView:
        """The state that the live monitor showed at this point."""
        return self.fold.view

    @property
    def at_end(self) -> bool:
        return self._peek() is None

    def play(self, seconds: float) -> int:
        """Let time pass at the player's speed. Return the number of events, at most PIECE."""
        ahead = self._peek()
        if ahead is None:
            return 0
        if self.clock is None or self.clock > ahead.time + timedelta(days=1):
            self.clock = ahead.time
        self.clock += timedelta(seconds=seconds * self.speed)
        if (ahead.time - self.clock).total_seconds() > LONGEST_GAP_S:
            self.clock = ahead.time - timedelta(seconds=LONGEST_GAP_S)
        count = 0
        while ahead is not None and ahead.time <= self.clock and count < PIECE:
            self.forward()
            count += 1
            ahead = self._peek()
        if count == PIECE and self.view.run.last_time is not None:
            self.clock = self.view.run.last_time  # it is not fast enough for this speed
        return count

    def forward(self) -> Event | None:
        """Fold the next event. Raises ConfigError if the log is damaged."""
        event = self._peek()
        if event is None:
            return None
        self._ahead, self.fold.offset = None, self._log.offset
        return self.fold.feed(event)

    def to_seq(self, seq: int) -> Iterator[None]:
        """Go to just after an event. Yields every PIECE events."""
        yield from self._to(bisect_right(self.checkpoints, seq, key=lambda c: c.seq), lambda fold: fold.seq >= seq, seq)

    def to_step(self, step: int) -> Iterator[None]:
        """Go to where the run first reached a step."""
        before = bisect_left(self.checkpoints, step, key=lambda c: c.step)
        yield from self._to(before, lambda fold: fold.view.run.step >= step, None)

    def to_tick(self, tick: int) -> Iterator[None]:
        before = bisect_left(self.checkpoints, tick, key=lambda c: c.tick)
        yield from self._to(before, lambda fold: fold.view.run.tick >= tick, None)

    def to_decision(self, by: int) -> Iterator[None]:
        here = self.fold.seq
        if by < 0:
            index = bisect_left(self.decisions, here, key=lambda d: d.seq) - 1
            yield from self.to_seq(self.decisions[index].seq if index >= 0 else 0)
            return
        index = bisect_right(self.decisions, here, key=lambda d: d.seq)
        if index < len(self.decisions):
            yield from self.to_seq(self.decisions[index].seq)
        else:
            yield from self._fold_on(lambda fold: False, until_decision=True)

    def to_start(self) -> Iterator[None]:
        """Go to the run's start, when its agents have joined; or to the first events of a log without one."""
        yield from self._to(0, lambda fold: fold.view.run.started is not None or fold.seq >= START_EVENTS, None)

    def to_end(self) -> Iterator[None]:
        yield from self._to(len(self.checkpoints), lambda fold: False, self.last[0])

    def _to(self, checkpoints: int, there: Callable[[Fold], bool], seq: int | None) -> Iterator[None]:
        """Fold from the last of that many checkpoints, or from here if that is nearer, until the target."""
        best = self.checkpoints[checkpoints - 1] if checkpoints else None
        ahead = seq is not None and self.fold.seq <= seq
        if not ahead or (best is not None and best.seq > self.fold.seq):
            self._go_on(best.unpack() if best else Fold.empty(self._folder))
        yield from self._fold_on(there)
        self.clock = self.view.run.last_time

    def _fold_on(self, there: Callable[[Fold], bool], *, until_decision: bool = False) -> Iterator[None]:
        count = 0
        while not there(self.fold):
            event = self.forward()
            if event is None or (until_decision and isinstance(event.body, Decision)):
                break
            count += 1
            if count % PIECE == 0:
                yield
        self.clock = self.view.run.last_time

    def _go_on(self, fold: Fold) -> None:
        self.fold = fold
        self._log = LogFile(self._folder, offset=fold.offset, seq=fold.seq, growing=True)
        self._events = iter(self._log)
        self._ahead = None

    def _peek(self) -> Event | None:
        if self._ahead is None:
            self._ahead = next(self._events, None)
        return self._ahead

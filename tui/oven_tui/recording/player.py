"""Plays a recorded run: shows what the live monitor showed at any event of the log.

The view at an event includes all events up to it. To go back, the player starts at the newest checkpoint before the
target and replays the log from there. The player does not measure time. The caller passes the elapsed time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.recording.log_reader import Checkpoint, DecisionPosition, Frame, FullLog, Preview, Progress, ReplayState

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
CHUNK_EVENTS = 500
"""Number of events to replay without a pause. They take about 50 ms, so the monitor still reacts to keys."""
START_EVENTS = 1000
"""Maximum events before the start of a run. Each agent that joins causes a few."""
MAX_GAP_S = 30.0
"""Maximum wait for an event, in seconds of the log. Longer gaps, such as a night between restarts, are shortened."""


class LogPosition(NamedTuple):
    seq: int
    tick: int
    step: int


class Player:
    """A player of a log. It needs the frames from `stream_frames`, and can go to any position that was read."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises ConfigError for damaged keys."""
        self._folder = folder
        self.speed = 1.0
        self.checkpoints: list[Checkpoint] = []
        self.decisions: list[DecisionPosition] = []
        """The decisions read so far, in order."""
        self.share_read = 0.0
        """Share of the log that was read, from 0 to 1."""
        self.log_end = LogPosition(0, 0, 0)
        self.is_fully_read = False
        """Whether the whole log was read."""
        self.log_time: datetime | None = None
        """The current position, as a time in the log."""
        self._next_event: Event | None = None
        self._continue_from(ReplayState.empty(folder))

    def add_frame(self, frame: Frame) -> None:
        match frame:
            case Preview(view):
                self.log_end = LogPosition(view.run.seq, view.run.tick, view.run.step)
            case Progress(share_read):
                self.share_read = share_read
            case Checkpoint():
                self.checkpoints.append(frame)
                self.decisions += frame.decisions
            case FullLog(state):
                self.decisions += frame.decisions
                run = state.view.run
                self.log_end = LogPosition(run.seq, run.tick, run.step)
                self.share_read, self.is_fully_read = 1.0, True

    @property
    def view(self) -> MonitorView:
        """Return what the live monitor showed at this point."""
        return self.state.view

    @property
    def is_at_end(self) -> bool:
        return self._peek() is None

    def play(self, seconds: float) -> int:
        """Play for some seconds at the player's speed. Return the number of events, at most CHUNK_EVENTS."""
        next_event = self._peek()
        if next_event is None:
            return 0
        if self.log_time is None or self.log_time > next_event.time + timedelta(days=1):  # or the times jumped back
            self.log_time = next_event.time
        self.log_time += timedelta(seconds=seconds * self.speed)
        if (next_event.time - self.log_time).total_seconds() > MAX_GAP_S:
            self.log_time = next_event.time - timedelta(seconds=MAX_GAP_S)
        count = 0
        while next_event is not None and next_event.time <= self.log_time and count < CHUNK_EVENTS:
            self.replay_next()
            count += 1
            next_event = self._peek()
        if count == CHUNK_EVENTS and self.view.run.last_time is not None:
            self.log_time = self.view.run.last_time  # replay is slower than the chosen speed
        return count

    def replay_next(self) -> Event | None:
        """Replay the next event. Raises ConfigError if the log is damaged."""
        event = self._peek()
        if event is None:
            return None
        self._next_event, self.state.offset = None, self._log.offset
        return self.state.feed(event)

    def to_seq(self, seq: int) -> Iterator[None]:
        """Go to the point after an event. Yields every CHUNK_EVENTS events."""
        count = bisect_right(self.checkpoints, seq, key=lambda c: c.seq)
        yield from self._seek(count, lambda state: state.seq >= seq, seq)

    def to_step(self, step: int) -> Iterator[None]:
        """Go to the point at which the run first reached a step."""
        count = bisect_left(self.checkpoints, step, key=lambda c: c.step)
        yield from self._seek(count, lambda state: state.view.run.step >= step, None)

    def to_tick(self, tick: int) -> Iterator[None]:
        """Go to the point at which the run first reached a tick."""
        count = bisect_left(self.checkpoints, tick, key=lambda c: c.tick)
        yield from self._seek(count, lambda state: state.view.run.tick >= tick, None)

    def to_decision(self, offset: int) -> Iterator[None]:
        """Go to the next decision, or to the previous one if `offset` is negative."""
        current_seq = self.state.seq
        if offset < 0:
            index = bisect_left(self.decisions, current_seq, key=lambda d: d.seq) - 1
            yield from self.to_seq(self.decisions[index].seq if index >= 0 else 0)
            return
        index = bisect_right(self.decisions, current_seq, key=lambda d: d.seq)
        if index < len(self.decisions):
            yield from self.to_seq(self.decisions[index].seq)
        else:
            yield from self._play_until(lambda state: False, until_decision=True)

    def to_start(self) -> Iterator[None]:
        """Go to the start of the run, after its agents have joined, or to the first events if it never started."""
        yield from self._seek(0, lambda state: state.view.run.started is not None or state.seq >= START_EVENTS, None)

    def to_end(self) -> Iterator[None]:
        yield from self._seek(len(self.checkpoints), lambda state: False, self.log_end.seq)

    def _seek(
        self, checkpoint_count: int, is_reached: Callable[[ReplayState], bool], seq: int | None
    ) -> Iterator[None]:
        """Replay up to the target, whose sequence number is `seq` if it is known. Start at the last of the first
        `checkpoint_count` checkpoints, or at the current position if that is closer."""
        checkpoint = self.checkpoints[checkpoint_count - 1] if checkpoint_count else None
        is_forward = seq is not None and self.state.seq <= seq
        if not is_forward or (checkpoint is not None and checkpoint.seq > self.state.seq):
            self._continue_from(checkpoint.unpack() if checkpoint else ReplayState.empty(self._folder))
        yield from self._play_until(is_reached)
        self.log_time = self.view.run.last_time

    def _play_until(self, is_reached: Callable[[ReplayState], bool], *, until_decision: bool = False) -> Iterator[None]:
        count = 0
        while not is_reached(self.state):
            event = self.replay_next()
            if event is None or (until_decision and isinstance(event.body, Decision)):
                break
            count += 1
            if count % CHUNK_EVENTS == 0:
                yield
        self.log_time = self.view.run.last_time

    def _continue_from(self, state: ReplayState) -> None:
        self.state = state
        self._log = LogFile(self._folder, offset=state.offset, seq=state.seq, growing=True)
        self._events = iter(self._log)
        self._next_event = None

    def _peek(self) -> Event | None:
        if self._next_event is None:
            self._next_event = next(self._events, None)
        return self._next_event

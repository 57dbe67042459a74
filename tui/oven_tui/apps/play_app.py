"""The application that replays a recorded run in the monitor. It shows what the live monitor showed at the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Footer

from oven_core.errors import OvenError
from oven_runs.home.run_folder import RunFolder
from oven_tui.acting_app import ACTING_KEYS
from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.key_bindings import bindings
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.cell_text import row
from oven_tui.recording.log_reader import ReadFailure
from oven_tui.recording.player import SPEEDS, Player
from oven_tui.screens.help import MONITOR_SCOPES, HelpScreen
from oven_tui.widgets.base_widgets import Lines
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.header import RunFacts

CHECKPOINT_COUNT = 128
"""Number of saved views along a long log. To go back in a log of a million events, at most 8,000 are replayed."""
ADVANCE_S = 0.1  # seconds between updates while playing
MIN_TRACK_CELLS = 20
"""Minimum width of the track, in cells. If there is less room, the track is hidden."""


class PlayBar(Lines):
    """The bar below a replayed run, with the position in the log, the speed, and the decisions."""

    def __init__(self, player: Player) -> None:
        super().__init__(id="play-bar")
        self.player = player
        self.playing = False
        self.busy = ""
        """The operation that the user is waiting for, or an empty string if there is none."""

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        player = self.player
        last_seq, last_tick, _ = player.log_end
        run = player.view.run
        glyph, kind = ("▶", "good") if self.playing else ("‖", "warn")
        if not self.playing and player.at_end:
            glyph, kind = "■", "dim"
        left_part: list[TextRun] = [(f" {glyph} ", kind), (f"{player.speed:g}× ", "strong")]
        position = f" event {run.seq}/{max(last_seq, run.seq)}  tick {run.tick}/{max(last_tick, run.tick)}  "
        left_part.append((position, "text"))
        right_part: list[TextRun] = []
        if self.busy:
            right_part.append((f" {self.busy} ", "warn"))
        elif not player.fully_read:
            right_part.append((f" reading {player.share_read:.0%} ", "dim"))
        if run.last_time is not None:
            right_part.append((f" {run.last_time:%Y-%m-%d %H:%M:%S} ", "dim"))
        track_cells = width - sum(len(text) for text, _ in (*left_part, *right_part))
        left_part += self._draw_track(track_cells - 1) if track_cells > MIN_TRACK_CELLS else []
        return [row(width, left_part, right_part)][:height]

    def _draw_track(self, width: int) -> list[TextRun]:
        """Return the track, a line from the start to the end of the log with the current position and the decisions."""
        _, last_tick, _ = self.player.log_end
        last_tick = max(1, last_tick, self.player.view.run.tick)
        current_cell = min(width - 1, self.player.view.run.tick * width // last_tick)
        cells: list[TextRun] = [("━", "good" if cell < current_cell else "raw") for cell in range(width)]
        for decision in self.player.decisions:
            cell = min(width - 1, decision.tick * width // last_tick)
            cells[cell] = ("◆", "good" if cell <= current_cell else "dim")
        cells[current_cell] = ("●", "strong")
        return [("".join(symbol for symbol, _ in group), kind) for kind, group in groupby(cells, key=itemgetter(1))]


class PlayApp(MonitorApp):
    BINDINGS: ClassVar[list[BindingType]] = bindings("player")
    # In the player, "t" goes to a step.
    acting_keys: ClassVar[dict[str, str]] = {key: title for key, title in ACTING_KEYS.items() if key != "t"}

    def __init__(
        self, facts: RunFacts, folder: RunFolder, *, appearance: Appearance | None = None, speed: float = 1.0
    ) -> None:
        """`speed` is a multiple of the run's original speed. The nearest of SPEEDS is used."""
        super().__init__(facts, appearance=appearance)
        self.player = Player(folder)
        self.player.speed = min(SPEEDS, key=lambda choice: abs(choice - speed))
        self.playing = True
        self._folder = folder
        self._advanced_at = time.monotonic()
        self._seek: Iterator[None] | None = None

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            if isinstance(widget, Footer):
                yield FilterBox("go to step", "a number", id="seek")
                yield PlayBar(self.player)
            yield widget

    def on_mount(self) -> None:
        self.set_link("connected", "")
        self.call_after_refresh(self._read_recording)
        self._start_seek(self.player.to_start())
        self.set_interval(ADVANCE_S, self._advance)

    @work(exit_on_error=True)
    async def _read_recording(self) -> None:
        from oven_tui.recording.log_reader import frames

        async for frame in frames(self._folder, checkpoints=CHECKPOINT_COUNT):
            if isinstance(frame, ReadFailure):
                self.notify(frame.reason, severity="error", timeout=20)
                self.player.fully_read = True
            self.player.add_frame(frame)

    def silent_s(self) -> float:
        """Return the seconds since the last event on the player's clock."""
        last, clock = self.view.run.last_time, self.player.clock
        return max(0.0, (clock - last).total_seconds()) if last and clock else 0.0

    def _advance(self) -> None:
        """Play the events due since the last update, or continue to the requested position."""
        now = time.monotonic()
        elapsed_s, self._advanced_at = now - self._advanced_at, now
        try:
            if self._seek is not None:
                self._continue_seek()
            elif self.playing:
                played_count = self.player.play(min(1.0, elapsed_s))
                if played_count == 0 and self.player.at_end:
                    self.playing = not self.player.fully_read
        except OvenError as error:
            self.playing, self._seek = False, None
            self.notify(str(error), severity="error", timeout=20)
        self._show()

    def _show(self) -> None:
        self.view = self.shown = self.player.view
        if (bar := self.find_widget(PlayBar)) is not None:
            bar.playing = self.playing
            bar.busy = "seeking …" if self._seek is not None else ""
            self.paint()
            bar.redraw()

    def _start_seek(self, steps: Iterator[None]) -> None:
        self._seek = steps
        self._advance()

    def _continue_seek(self) -> None:
        """Continue to the requested position for a short time, so that the monitor still reacts to keys."""
        deadline = time.monotonic() + ADVANCE_S / 2
        assert self._seek is not None
        for _ in self._seek:
            if time.monotonic() > deadline:
                return
        self._seek = None

    def action_pause(self) -> None:
        if self.player.at_end and not self.playing:
            self._start_seek(self.player.to_start())
        self.playing = not self.playing
        self._show()

    def action_speed(self, offset: int) -> None:
        index = SPEEDS.index(self.player.speed) + offset
        self.player.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, index))]
        self._show()

    def action_step(self, offset: int) -> None:
        self.playing = False
        self._start_seek(self.player.to_tick(max(0, self.player.view.run.tick + offset)))

    def action_decision(self, offset: int) -> None:
        self.playing = False
        self._start_seek(self.player.to_decision(offset))

    def action_tenth(self, offset: int) -> None:
        _, last_tick, _ = self.player.log_end
        tick = self.player.view.run.tick + offset * max(1, last_tick // 10)
        self._start_seek(self.player.to_tick(max(0, min(tick, last_tick))))

    def action_start(self) -> None:
        self._start_seek(self.player.to_start())

    def action_end(self) -> None:
        self.playing = False
        self._start_seek(self.player.to_end())

    def action_seek(self) -> None:
        self.query_one("#seek", FilterBox).open()

    def on_filter_box_submitted(self, message: FilterBox.Submitted) -> None:
        if message.box.id == "seek":
            message.box.clear()
            if message.words.isdigit():
                self._start_seek(self.player.to_step(int(message.words)))

    def action_help(self) -> None:
        self.push_screen(HelpScreen((*MONITOR_SCOPES, "player")))

"""An application that plays a recorded run in the monitor. At each moment it shows what the live monitor showed
then."""

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
from oven_tui.acting_commands import ACTING_KEYS
from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.bindings import bindings
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import row
from oven_tui.past.player import SPEEDS, Player
from oven_tui.past.reader import Failed
from oven_tui.screens.help import BOARD, HelpScreen
from oven_tui.widgets.base import Lines
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.header import About

CHECKPOINTS = 128
"""Checkpoints of a long log. Going back in a log of a million events folds at most 8,000."""
TURN_S = 0.1
"""Seconds between two turns of playing."""
TRACK = 20
"""Least width of the track, in cells; below it there is none."""


class PlayBar(Lines):
    """The bar under a played run: the position in the log, the speed, and the decisions."""

    def __init__(self, player: Player) -> None:
        super().__init__(id="play-bar")
        self.player = player
        self.playing = False
        self.busy = ""
        """The operation that the player is waiting for; empty if nothing."""

    def rows(self, width: int, height: int) -> list[list[Run]]:
        player = self.player
        seq, tick, _ = player.last
        run = player.view.run
        glyph, kind = ("▶", "good") if self.playing else ("‖", "warn")
        if not self.playing and player.at_end:
            glyph, kind = "■", "dim"
        left_part: list[Run] = [(f" {glyph} ", kind), (f"{player.speed:g}× ", "strong")]
        left_part.append((f" event {run.seq}/{max(seq, run.seq)}  tick {run.tick}/{max(tick, run.tick)}  ", "text"))
        right: list[Run] = []
        if self.busy:
            right.append((f" {self.busy} ", "warn"))
        elif not player.whole:
            right.append((f" reading {player.share:.0%} ", "dim"))
        if run.last_time is not None:
            right.append((f" {run.last_time:%Y-%m-%d %H:%M:%S} ", "dim"))
        room = width - sum(len(text) for text, _ in (*left_part, *right))
        return [row(width, [*left_part, *(self._track(room - 1) if room > TRACK else [])], right)][:height]

    def _track(self, width: int) -> list[Run]:
        """Return a cell per part of the log: before here, here, after, and the decisions."""
        last = max(1, self.player.last[1], self.player.view.run.tick)
        here = min(width - 1, self.player.view.run.tick * width // last)
        cells: list[Run] = [("━", "good" if cell < here else "raw") for cell in range(width)]
        for decision in self.player.decisions:
            cell = min(width - 1, decision.tick * width // last)
            cells[cell] = ("◆", "good" if cell <= here else "dim")
        cells[here] = ("●", "strong")
        return [("".join(sign for sign, _ in part), kind) for kind, part in groupby(cells, key=itemgetter(1))]


class PlayApp(MonitorApp):
    BINDINGS: ClassVar[list[BindingType]] = bindings("player")
    acting_keys: ClassVar[dict[str, str]] = {
        key: title for key, title in ACTING_KEYS.items() if key != "t"
    }  # "t" goes to a step

    def __init__(
        self, about: About, folder: RunFolder, *, appearance: Appearance | None = None, speed: float = 1.0
    ) -> None:
        """`speed` is a multiple of the run's own pace; the nearest of SPEEDS is used."""
        super().__init__(about, appearance=appearance)
        self.player = Player(folder)
        self.player.speed = min(SPEEDS, key=lambda known: abs(known - speed))
        self.playing = True
        self._recorded = folder
        self._turned = time.monotonic()
        self._going: Iterator[None] | None = None

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            if isinstance(widget, Footer):
                yield FilterBox("go to step", "a number", id="seek")
                yield PlayBar(self.player)
            yield widget

    def on_mount(self) -> None:
        self.say("connected", "")
        self.call_after_refresh(self._read_past)
        self._go(self.player.to_start())
        self.set_interval(TURN_S, self._turn)

    @work(exit_on_error=True)
    async def _read_past(self) -> None:
        from oven_tui.past.reader import frames

        async for frame in frames(self._recorded, checkpoints=CHECKPOINTS):
            if isinstance(frame, Failed):
                self.notify(frame.reason, severity="error", timeout=20)
                self.player.whole = True
            self.player.take(frame)

    def silent_s(self) -> float:
        """Return the seconds since the last event on the player's clock."""
        last, clock = self.view.run.last_time, self.player.clock
        return max(0.0, (clock - last).total_seconds()) if last and clock else 0.0

    def _turn(self) -> None:
        """Let the time since the last turn pass, or continue towards the requested place."""
        now = time.monotonic()
        passed, self._turned = now - self._turned, now
        try:
            if self._going is not None:
                self._go_on()
            elif self.playing and self.player.play(min(1.0, passed)) == 0 and self.player.at_end:
                self.playing = not self.player.whole
        except OvenError as error:
            self.playing, self._going = False, None
            self.notify(str(error), severity="error", timeout=20)
        self._show()

    def _show(self) -> None:
        self.view = self.shown = self.player.view
        if (bar := self.part(PlayBar)) is not None:
            bar.playing = self.playing
            bar.busy = "going there …" if self._going is not None else ""
            self.paint()
            bar.redraw()

    def _go(self, where: Iterator[None]) -> None:
        self._going = where
        self._turn()

    def _go_on(self) -> None:
        """Go a few chunks of the way, so that keys work in between."""
        until = time.monotonic() + TURN_S / 2
        assert self._going is not None
        for _ in self._going:
            if time.monotonic() > until:
                return
        self._going = None

    def action_pause(self) -> None:
        if self.player.at_end and not self.playing:
            self._go(self.player.to_start())
        self.playing = not self.playing
        self._show()

    def action_speed(self, by: int) -> None:
        index = SPEEDS.index(self.player.speed) + by
        self.player.speed = SPEEDS[max(0, min(len(SPEEDS) - 1, index))]
        self._show()

    def action_step(self, by: int) -> None:
        self.playing = False
        self._go(self.player.to_tick(max(0, self.player.view.run.tick + by)))

    def action_decision(self, by: int) -> None:
        self.playing = False
        self._go(self.player.to_decision(by))

    def action_tenth(self, by: int) -> None:
        tick = self.player.view.run.tick + by * max(1, self.player.last[1] // 10)
        self._go(self.player.to_tick(max(0, min(tick, self.player.last[1]))))

    def action_start(self) -> None:
        self._go(self.player.to_start())

    def action_end(self) -> None:
        self.playing = False
        self._go(self.player.to_end())

    def action_seek(self) -> None:
        self.query_one("#seek", FilterBox).open()

    def on_filter_box_submitted(self, message: FilterBox.Submitted) -> None:
        if message.box.id == "seek":
            message.box.clear()
            if message.words.isdigit():
                self._go(self.player.to_step(int(message.words)))

    def action_help(self) -> None:
        self.push_screen(HelpScreen((*BOARD, "player")))

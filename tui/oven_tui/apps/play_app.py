"""An application that plays a recorded run in the monitor. At each moment it shows what the live monitor showed
then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Footer

from oven_core.errors import OvenError
from oven_runs.home.run_folder import RunFolder
from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.bindings import bindings
from oven_tui.past.player import SPEEDS, Player
from oven_tui.past.reader import Failed
from oven_tui.screens.help import BOARD, HelpScreen
from oven_tui.widgets.header import About
from oven_tui.widgets.play_bar import PlayBar
from oven_tui.widgets.seek_box import SeekBox

CHECKPOINTS = 128
"""Checkpoints of a long log. Going back in a log of a million events folds at most 8,000."""
TURN_S = 0.1
"""Seconds between two turns of playing."""


class PlayApp(MonitorApp):
    BINDINGS: ClassVar[list[BindingType]] = bindings("player")

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
        self._goal: Callable[[], Iterator[None]] | None = None  # where to go once that much was read

    def compose(self) -> ComposeResult:
        for widget in super().compose():
            if isinstance(widget, Footer):
                yield SeekBox()
                yield PlayBar(self.player)
            yield widget

    def on_mount(self) -> None:
        super().on_mount()
        self.say("connected", "")
        self.call_after_refresh(self._read_past)
        self._go(self.player.to_start())
        self.set_interval(TURN_S, self._turn)

    def _read_past(self) -> None:
        self.run_worker(self._checkpoints(), exit_on_error=True)

    async def _checkpoints(self) -> None:
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
        bar = next(iter(self.screen_stack[0].query(PlayBar)), None) if self.screen_stack else None
        if bar is not None:
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
        self.query_one(SeekBox).open()

    def on_seek_box_submitted(self, message: SeekBox.Submitted) -> None:
        self._go(self.player.to_step(message.step))

    def action_help(self) -> None:
        self.push_screen(HelpScreen((*BOARD, "player")))

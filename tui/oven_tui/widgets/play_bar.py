"""The bar under a played run: the position in the log, the speed, and the decisions."""

from __future__ import annotations

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import row
from oven_tui.past.player import Player
from oven_tui.widgets.base import Lines

TRACK = 20
"""Least width of the track, in cells; below it there is none."""


class PlayBar(Lines):
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
        joined: list[Run] = []
        for text, kind in cells:
            if joined and joined[-1][1] == kind:
                joined[-1] = (joined[-1][0] + text, kind)
            else:
                joined.append((text, kind))
        return joined

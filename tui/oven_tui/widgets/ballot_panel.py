"""The panel of one ballot: who supported the change, who objected, and why. It shows the selected row of the list of
decisions, or the newest ballot if that row is a note."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size

from oven_runs.log.decision_line import Side, Voice, headline, main_reason, short_knob, voices
from oven_runs.log.run_summary import format_value, verdict_text
from oven_tui.model.cell_text import TextRun, clip, fit, glyph, row, wrapped
from oven_tui.model.decision_entries import DecisionEntry, Entry, OpenBallot
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base_widgets import Lines, Panel

NAME_WIDTH = 17
SIGNS: dict[Side, TextRun] = {"for": ("+", "good"), "against": ("−", "bad"), "abstains": ("·", "dim")}
"""The sign of each side, with its kind of text."""
MAX_REASON_ROWS = 3
"""Maximum number of rows for one agent's reason. The ballot's page has all of it."""


class BallotPanel(Lines, Panel):
    """The panel is hidden until there is a ballot."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="ballot")
        self.view = view
        self.selected: Entry | None = None
        """The selected row of the list of decisions."""
        self._drawn_height = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._rows(width))

    def redraw(self) -> None:
        entry = self._entry()
        self.set_class(entry is not None, "-known")
        self.border_title = _title(entry) if entry is not None else ""
        full_height = len(self._rows(max(1, self.content_size.width)))
        if full_height != self._drawn_height:
            self._drawn_height = full_height
            self.refresh(layout=True)
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        for reason_rows in range(MAX_REASON_ROWS, 0, -1):
            rows = self._rows(width, reason_rows)
            if len(rows) <= height:
                return [row(width, cells) for cells in rows]
        return [row(width, cells) for cells in self._shared_rows(width, height)]

    def _entry(self) -> DecisionEntry | OpenBallot | None:
        if isinstance(self.selected, DecisionEntry | OpenBallot):
            return self.selected
        newest_first = reversed(self.view.rows())
        return next((entry for entry in newest_first if isinstance(entry, DecisionEntry | OpenBallot)), None)

    def _rows(self, width: int, reason_rows: int = MAX_REASON_ROWS) -> list[list[TextRun]]:
        """Return the rows of the agents that voted, with up to `reason_rows` rows for each reason, and a last row."""
        entry = self._entry()
        if entry is None:
            return []
        rows = [cells for voice in _voices(entry) for cells in self._voice_rows(voice, width, reason_rows)]
        if isinstance(entry, OpenBallot):
            waiting = ", ".join(agent for agent in entry.opened.eligible if agent not in entry.votes)
            return [*rows, *(_reason_rows(_head("waiting for"), waiting, width, 1) if waiting else [])]
        is_rejected = verdict_text(entry.decision.verdict, entry.decision.reason) == "rejected"
        if is_rejected or not rows:
            rows += _reason_rows(_head("mesh"), main_reason(entry.decision), width, 2)
        return rows

    def _voice_rows(self, voice: Voice, width: int, reason_rows: int) -> list[list[TextRun]]:
        colour = glyph(self.view.agents.index(voice.agent))[1] if voice.agent in self.view.agents else "text"
        sign, kind = SIGNS[voice.side]
        head = [(f"{sign} ", kind), (fit(voice.name, NAME_WIDTH - 1) + " ", colour)]
        return _reason_rows(head, voice.reason or "no reason given", width, reason_rows)

    def _shared_rows(self, width: int, height: int) -> list[list[TextRun]]:
        """Return one row per agent for as many as fit. The last row of each side has its remaining agents."""
        entry = self._entry()
        all_voices = [voice for voice in _voices(entry) if voice.side != "abstains"] if entry is not None else []
        sides = [[voice for voice in all_voices if voice.side == side] for side in SIGNS]
        present_sides = [allies for allies in sides if allies]
        spare_rows = height - len(present_sides)
        rows: list[list[TextRun]] = []
        for allies in present_sides:
            single_count = min(max(0, spare_rows), len(allies) - 1)
            spare_rows -= single_count
            rows += [cells for voice in allies[:single_count] for cells in self._voice_rows(voice, width, 1)]
            rest = allies[single_count:]
            rows += self._voice_rows(rest[0], width, 1) if len(rest) == 1 else [_shared_row(rest, width)]
        return rows[:height]


def _voices(entry: DecisionEntry | OpenBallot) -> list[Voice]:
    """Return the agents that voted, supporters first."""
    if isinstance(entry, DecisionEntry):
        return voices(entry.decision.tally)
    opener = entry.opened.opened_by
    votes = sorted(entry.votes.items(), key=lambda item: (item[0] != opener, item[0]))
    return sorted((Voice.from_vote(*item) for item in votes), key=lambda voice: list(SIGNS).index(voice.side))


def _head(name: str) -> list[TextRun]:
    return [("  ", "blank"), (fit(name, NAME_WIDTH), "dim")]


def _reason_rows(head: list[TextRun], reason: str, width: int, count: int) -> list[list[TextRun]]:
    """Return the rows of one agent: the reason is wrapped next to the name, and cut after `count` rows."""
    free_cells = max(10, width - NAME_WIDTH - 2)
    lines = wrapped(fit(reason, len(reason)).rstrip(), free_cells)
    if len(lines) > count:
        lines = [*lines[: count - 1], fit(" ".join(lines[count - 1 :]), free_cells)]
    indent: list[TextRun] = [(" " * (NAME_WIDTH + 2), "blank")]
    return [[*(head if number == 0 else indent), (line, "dim")] for number, line in enumerate(lines)]


def _shared_row(allies: Sequence[Voice], width: int) -> list[TextRun]:
    """Return the row of several agents of one side, with the first one's reason."""
    sign, kind = SIGNS[allies[0].side]
    names = clip(", ".join(voice.name for voice in allies), width // 2)
    return [(f"{sign} ", kind), (f"{names}  ", "text"), (allies[0].reason, "dim")]


def _title(entry: DecisionEntry | OpenBallot) -> str:
    if isinstance(entry, OpenBallot):
        opened = entry.opened
        return f"open ballot: {short_knob(opened.actuator)} → {format_value(opened.proposal)}"
    return f"step {entry.step}: {headline(entry.decision, entry.decision.before)}"

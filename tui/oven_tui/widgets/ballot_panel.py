"""The panel of one ballot: who supported the change, who objected, and why. It shows the selected row of the list of
decisions, or the newest ballot if that row is a note."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size

from oven_runs.log.decision_line import Side, Voice, change_text, main_reason, short_knob, voices
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
    """The panel is hidden while there was no ballot."""

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
        for reason_rows in range(MAX_REASON_ROWS, -1, -1):
            rows = self._rows(width, reason_rows)
            if len(rows) <= height:
                break
        return [row(width, cells) for cells in rows[:height]]

    def _entry(self) -> DecisionEntry | OpenBallot | None:
        if isinstance(self.selected, DecisionEntry | OpenBallot):
            return self.selected
        newest_first = reversed(self.view.rows())
        return next((entry for entry in newest_first if isinstance(entry, DecisionEntry | OpenBallot)), None)

    def _rows(self, width: int, reason_rows: int = MAX_REASON_ROWS) -> list[list[TextRun]]:
        """Return the rows, with up to `reason_rows` rows for each agent's reason. If it is 0, agents of the same side
        share a row with the first one's reason."""
        entry = self._entry()
        if entry is None:
            return []
        if isinstance(entry, OpenBallot):
            return self._open_rows(entry, width, reason_rows)
        decision = entry.decision
        rows = self._voice_rows(voices(decision.tally), width, reason_rows)
        is_rejected = verdict_text(decision.verdict, decision.reason) == "rejected"
        if is_rejected or not rows:
            rows += _reason_rows([("  ", "blank"), (fit("mesh", NAME_WIDTH), "dim")], main_reason(decision), width, 2)
        return rows

    def _open_rows(self, entry: OpenBallot, width: int, reason_rows: int) -> list[list[TextRun]]:
        opener = entry.opened.opened_by
        votes = sorted(entry.votes.items(), key=lambda item: (item[0] != opener, item[0]))
        all_voices = [Voice.from_vote(agent, vote) for agent, vote in votes]
        by_side = sorted(all_voices, key=lambda voice: list(SIGNS).index(voice.side))
        waiting = [agent for agent in entry.opened.eligible if agent not in entry.votes]
        rows = self._voice_rows(by_side, width, reason_rows)
        if waiting:
            rows.append([("  ", "blank"), (fit("waiting for", NAME_WIDTH), "dim"), (", ".join(waiting), "dim")])
        return rows

    def _voice_rows(self, all_voices: Sequence[Voice], width: int, reason_rows: int) -> list[list[TextRun]]:
        rows: list[list[TextRun]] = []
        if not reason_rows:
            sides = [(sign, [voice for voice in all_voices if voice.side == side]) for side, sign in SIGNS.items()]
            return [_shared_row(sign, allies, width) for sign, allies in sides if allies]
        for voice in all_voices:
            colour = glyph(self.view.agents.index(voice.agent))[1] if voice.agent in self.view.agents else "text"
            head = [(f"{SIGNS[voice.side][0]} ", SIGNS[voice.side][1]), (fit(voice.name, NAME_WIDTH - 1) + " ", colour)]
            rows += _reason_rows(head, voice.reason or "no reason given", width, reason_rows)
        return rows


def _reason_rows(head: list[TextRun], reason: str, width: int, count: int) -> list[list[TextRun]]:
    """Return the rows of one agent: the reason is wrapped next to the name, and cut after `count` rows."""
    free_cells = max(10, width - NAME_WIDTH - 2)
    lines = wrapped(fit(reason, len(reason)).rstrip(), free_cells)
    if len(lines) > count:
        lines = [*lines[: count - 1], fit(" ".join(lines[count - 1 :]), free_cells)]
    indent: list[TextRun] = [(" " * (NAME_WIDTH + 2), "blank")]
    return [[*(head if number == 0 else indent), (line, "dim")] for number, line in enumerate(lines)]


def _shared_row(sign: TextRun, allies: Sequence[Voice], width: int) -> list[TextRun]:
    """Return the row of all agents of one side, with the first one's reason."""
    names = clip(", ".join(voice.name for voice in allies), width // 2)
    return [(f"{sign[0]} ", sign[1]), (f"{names}  ", "text"), (allies[0].reason, "dim")]


def _title(entry: DecisionEntry | OpenBallot) -> str:
    if isinstance(entry, OpenBallot):
        opened = entry.opened
        return f"open ballot: {short_knob(opened.actuator)} → {format_value(opened.proposal)}"
    decision = entry.decision
    change = f"{short_knob(decision.actuator)} {change_text(decision.before, decision.value)}".rstrip()
    return f"step {entry.step}: {change} {verdict_text(decision.verdict, decision.reason)}"

"""The panel of participants. Agents that acted, the knowledge graph and the committee have their own rows. Agents that
have not voted share rows, and those with nothing to do in this run are counted in the title."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.cells import cell_len
from textual.geometry import Size

from oven_core.protocol.messages import Vote
from oven_runs.log.decision_line import short_knob
from oven_runs.log.run_summary import AgentView, format_value
from oven_tui.model.cell_text import TextRun, fit, glyph, row
from oven_tui.model.monitor_view import AgentStanding, MonitorView
from oven_tui.model.participants import GRAPH, Seat
from oven_tui.widgets.base_widgets import Lines, Panel

NAME_WIDTH = 17
MIN_COMPACT_WIDTH = 26
"""Minimum width of an agent that shares a row. Together, the agents use the full width of the row."""
MAX_FULL_ROWS = 8
"""Up to this number of agents, each has its own row."""
STANDING_KINDS: dict[AgentStanding, str] = {
    "live": "good", "idle": "dim", "failed": "bad", "silent": "bad", "left": "dim",
}  # fmt: skip
"""The kind of text for each standing."""
Indexed = tuple[int, str]
"""An agent's position, which determines its glyph, and its name."""


class AgentPanel(Lines, Panel):
    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="agents")
        self.view = view
        self._drawn_height = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._full_height(width)

    def redraw(self) -> None:
        full_height = self._full_height(max(1, self.content_size.width))
        if full_height != self._drawn_height:
            self._drawn_height = full_height
            self.refresh(layout=True)
        self.border_title = self.title(self.content_size.width)
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        """Return the rows. If the height is too small, active agents share rows, and some agents are only counted."""
        if not self.view.agents:
            return [row(width, [("no agent has joined", "dim")])]
        active, quiet = self._group_agents()
        graph_cells = self._graph_cells()
        if GRAPH in self.view.agents and height < self._full_height(width):
            graph_cells = []  # the graph's row among the agents is enough
        others = [row(width, cells) for cells in (graph_cells, self._committee_cells(width)) if cells]
        free_rows = max(1, height - len(others))
        full_count = len(active)  # quiet agents, and active ones without a row of their own, need at least one row
        while full_count and _table_height(full_count, max(len(active), full_count + bool(quiet)), width) > free_rows:
            full_count -= 1
        rows = [row(width, [(self._head(), "dim")])] if full_count else []
        rows += [self._full_row(width, index, name) for index, name in active[:full_count]]
        if full_count < len(active):
            return [*rows, *self._compact_rows(width, free_rows - len(rows), [*active[full_count:], *quiet]), *others]
        return [*rows, *others, *self._compact_rows(width, free_rows - len(rows), quiet)]

    def _full_height(self, width: int) -> int:
        active, quiet = self._group_agents()
        others = sum(map(bool, (self._graph_cells(), self._committee_cells(width))))
        return max(1, _table_height(len(active), len(active), width) + others + math.ceil(len(quiet) / _per_row(width)))

    def title(self, width: int) -> str:
        """Return the title, with the number of agents that have nothing to do in this run."""
        idle_count = len(self.view.run.idle_agents())
        if not idle_count:
            return "participants"
        have = "has" if idle_count == 1 else "have"
        command = f"oven-controller agent list --run {self.view.name}"
        texts = [
            f"participants; {idle_count} {words}: {command}"
            for words in (f"{have} nothing to do in this run", f"{have} nothing to do", "idle")
        ]
        return next((text for text in texts if cell_len(text) < width), texts[-1])

    def _group_agents(self) -> tuple[list[Indexed], list[Indexed]]:
        """Return the agents that may have their own row, because they voted, raised an alert or failed, and the others.
        Agents with nothing to do are omitted. If there are few agents, each has its own row."""
        idle_agents = set(self.view.run.idle_agents())
        able = [(index, name) for index, name in enumerate(self.view.agents) if name not in idle_agents]
        able.sort(key=lambda item: item[1] != GRAPH)  # the graph is first, so that it is always visible
        if len(able) <= MAX_FULL_ROWS:
            return able, []
        active = [(index, name) for index, name in able if self._is_active(name)]
        return active, [(index, name) for index, name in able if not self._is_active(name)]

    def _is_active(self, name: str) -> bool:
        agent = self.view.run.agents[name]
        has_alert = name in self.view.run.alerts.by_agent
        return bool(agent.last_vote or agent.failure_reason) or has_alert or name == GRAPH

    def _compact_rows(self, width: int, height: int, agents: Sequence[Indexed]) -> list[list[TextRun]]:
        """Return the agents in at most `height` rows, with the number of those that do not fit."""
        per_row = _per_row(width)
        cell_width = max(MIN_COMPACT_WIDTH, width // per_row)
        hidden_count = max(0, len(agents) - per_row * height)
        shown = agents[: per_row * height - 1] if hidden_count else agents
        rows: list[list[TextRun]] = []
        for start in range(0, len(shown), per_row):
            cells: list[TextRun] = []
            for index, name in shown[start : start + per_row]:
                state, kind = self._state(name, self.view.run.agents[name])
                if name == GRAPH and (replies := self.view.participants.replies.get(name)) is not None:
                    state = _latency_text(replies.latency_s)
                symbol, colour = glyph(index)
                cells += [(f"{symbol} ", colour), (fit(name, cell_width - 11) + " ", "text"), (fit(state, 8), kind)]
            if hidden_count and start + per_row > len(shown):
                cells.append((f"  {hidden_count + 1} more", "dim"))
            rows.append(row(width, cells))
        return rows

    def _head(self) -> str:
        reply = fit("reply", 8) if self.view.participants.replies else ""
        return fit("agent", NAME_WIDTH + 2) + fit("state", 9) + f"prop agst back   rep  {reply}last vote"

    def _full_row(self, width: int, index: int, name: str) -> list[TextRun]:
        agent = self.view.run.agents[name]
        symbol, colour = glyph(index)
        cells: list[TextRun] = [(f"{symbol} ", colour), (fit(name, NAME_WIDTH - 1) + " ", "text")]
        state, kind = self._state(name, agent)
        cells.append((fit(state, 9), kind))
        counts = (agent.proposals, agent.against, agent.backed)
        texts = ("…" if self.view.is_preview else str(count) for count in counts)  # in a preview they are unknown
        cells.append((" ".join(f"{text:>4}" for text in texts) + "  ", "text"))
        cells.append(self._reputation(name))
        if replies_by_agent := self.view.participants.replies:
            replies = replies_by_agent.get(name)
            cells.append((fit(_latency_text(replies.latency_s) if replies else "–", 8), "text" if replies else "dim"))
        if alerts := self.view.run.alerts.by_agent.get(name):
            cells.append(("! " + ", ".join(sorted(alerts)) + " ", "bad"))
        if agent.failure_reason:
            cells.append((agent.failure_reason, "bad"))
        elif agent.last_vote is not None:
            free_cells = width - sum(cell_len(text) for text, _ in cells)
            cells.append((vote_text(agent.last_vote, free_cells), "dim"))
        return row(width, cells)

    def _graph_cells(self) -> list[TextRun]:
        """Return the row with the requests to the graph and its newest path, or an empty list if it was not asked."""
        participants = self.view.participants
        if not participants.graph_requests:
            return []
        text = f"{participants.graph_requests} request{'s' * (participants.graph_requests != 1)}"
        if participants.graph_path:
            text = f"{participants.graph_path}; {text}"
        name = f"{GRAPH} cites" if GRAPH in self.view.agents else GRAPH
        return [("  ", "blank"), (fit(name, NAME_WIDTH - 1) + " ", "text"), (text, "dim")]

    def _committee_cells(self, width: int) -> list[TextRun]:
        """Return the row of the reward committee, or an empty list if the run has none."""
        seats = self.view.participants.seats()
        if not seats:
            return []
        cells: list[TextRun] = [("  ", "blank"), (fit("committee", NAME_WIDTH - 1) + " ", "text")]
        for number, seat in enumerate(seats):
            next_cells = _seat_cells(seat)
            more = f"+{len(seats) - number}"
            free_cells = width - sum(cell_len(text) for text, _ in (*cells, *next_cells))
            if free_cells < (len(more) + 1 if number < len(seats) - 1 else -2):
                return [*cells, (more, "dim")]
            cells += next_cells
        return cells

    def _state(self, name: str, agent: AgentView) -> TextRun:
        """Return an agent's state. An active alert takes precedence."""
        standing = self.view.standing(name)
        if name in self.view.run.alerts.by_agent and standing != "left":
            return "alert", "bad"
        if standing == "live" and agent.is_newcomer:
            return "newcomer", "warn"
        return standing, STANDING_KINDS[standing]

    def _reputation(self, name: str) -> TextRun:
        """Return an agent's reputation. It is red below the minimum in the rules for vetoes and the quorum."""
        reputation = self.view.reputations.get(name)
        if reputation is None:
            return "   –  ", "dim"
        min_reputation = self.view.run.started.rules.least_reputation if self.view.run.started else 0.0
        return f"{reputation:>4.2f}  ", "bad" if reputation < min_reputation else "text"


def _table_height(full_count: int, active_count: int, width: int) -> int:
    """Return the number of rows for the active agents, if `full_count` of them have their own row."""
    head = 1 if full_count else 0
    return head + full_count + math.ceil((active_count - full_count) / _per_row(width))


def _per_row(width: int) -> int:
    return max(1, width // MIN_COMPACT_WIDTH)


def _latency_text(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.3g} s"


def _seat_cells(seat: Seat) -> list[TextRun]:
    """Return a member's mean score and its weight ("exact 0.87 ×1"), or why it does not score."""
    weight = f" ×{seat.weight:.2g}" if seat.weight is not None else ""
    if seat.problem:
        kind = "bad" if seat.problem == "quarantined" else "warn" if seat.problem.startswith("abstain") else "dim"
        return [(f"{seat.member} ", "text"), (f"{seat.problem}{weight}  ", kind)]
    score = f"{seat.score:.2f}" if seat.score is not None else "–"
    return [(f"{seat.member} ", "dim" if seat.weight == 0 else "text"), (f"{score}{weight}  ", "dim")]


def vote_text(vote: Vote, width: int) -> str:
    """Return as much of the vote as fits in `width` cells, at least its stance and its knob."""
    proposal = text = f"{vote.stance} {short_knob(vote.actuator)}"
    value = f" {format_value(vote.value)}" if vote.stance == "propose" and vote.value is not None else ""
    for part in (value, f", confidence {vote.confidence:.2f}", f", tick {vote.tick}"):
        proposal += part
        if cell_len(proposal) <= width:
            text = proposal
    return text

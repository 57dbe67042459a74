"""The panel of agents, with the state, counts, reputation and last vote of each. If there are many agents, those that
proposed, objected or raised an alert have their own row, and the others share rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.geometry import Size

from oven_core.protocol.messages import Vote
from oven_runs.log.run_summary import AgentView, format_value
from oven_tui.model.cell_text import TextRun, fit, glyph, row
from oven_tui.model.monitor_view import AgentStanding, MonitorView
from oven_tui.widgets.base_widgets import Lines, Panel

NAME_WIDTH = 17
MIN_COMPACT_WIDTH = 26
"""Minimum width of an agent that shares a row. Together, the agents use the full width of the row."""
MAX_FULL_ROWS = 8
"""Up to this number of agents, each has its own row."""
STANDING_KINDS: dict[AgentStanding, str] = {"live": "good", "silent": "bad", "left": "dim"}  # kinds of text


class AgentPanel(Lines, Panel):
    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="agents")
        self.view = view
        self.border_title = "agents"
        self._row_counts = (0, 0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        full, compact = self._split_agents()
        return 1 + len(full) + _compact_row_count(len(compact), width)

    def redraw(self) -> None:
        full, compact = self._split_agents()
        if (len(full), len(compact)) != self._row_counts:
            self._row_counts = (len(full), len(compact))
            self.refresh(layout=True)  # the panel's height depends on the rows
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        if not self.view.agents:
            return [row(width, [("no agent has joined", "dim")])]
        full, compact = self._split_agents()
        if height < 1 + len(full) + _compact_row_count(len(compact), width):
            return self._compact_rows(width, height, [*full, *compact])
        head = fit("agent", NAME_WIDTH + 2) + fit("state", 9) + "prop  agst  backed   rep  last vote"
        rows = [row(width, [(head, "dim")])]
        rows += [self._full_row(width, index, name, self.view.run.agents[name]) for index, name in full]
        return rows + self._compact_rows(width, height, compact)

    def _split_agents(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return (position, name) of each agent that has its own row, and of each that shares a row. Agents that cannot
        fire, because they cannot propose anything in this run, are last."""
        all_agents = list(enumerate(self.view.agents))
        if len(all_agents) <= MAX_FULL_ROWS:
            return all_agents, []
        agents = self.view.run.agents
        alerting = self.view.run.alerts.by_agent
        full = [
            (index, name)
            for index, name in all_agents
            if agents[name].proposals or agents[name].against or name in alerting
        ]
        others = [(index, name) for index, name in all_agents if (index, name) not in full]
        able = [(index, name) for index, name in others if not agents[name].cannot_fire_reason]
        unable = [(index, name) for index, name in others if agents[name].cannot_fire_reason]
        return full, able + unable

    def _compact_rows(self, width: int, height: int, agents: Sequence[tuple[int, str]]) -> list[list[TextRun]]:
        per_row = max(1, width // MIN_COMPACT_WIDTH)
        cell_width = max(MIN_COMPACT_WIDTH, width // per_row)
        rows: list[list[TextRun]] = []
        for start in range(0, len(agents), per_row):
            cells: list[TextRun] = []
            for index, name in agents[start : start + per_row]:
                agent = self.view.run.agents[name]
                state, kind = self._state(name, agent)
                symbol, colour = glyph(index)
                cells += [(f"{symbol} ", colour), (fit(name, cell_width - 11) + " ", "text"), (fit(state, 8), kind)]
            rows.append(row(width, cells))
        if len(rows) > height:
            hidden_count = len(agents) - per_row * (height - 1)
            hint = f"{hidden_count} more; enlarge the terminal to see them"
            rows = [*rows[: height - 1], row(width, [(hint, "dim")])]
        return rows

    def _full_row(self, width: int, index: int, name: str, agent: AgentView) -> list[TextRun]:
        symbol, colour = glyph(index)
        left_part: list[TextRun] = [(f"{symbol} ", colour), (fit(name, NAME_WIDTH - 1) + " ", "text")]
        state, kind = self._state(name, agent)
        left_part.append((fit(state, 9), kind))
        counts = (f"{agent.proposals:>4}", f"{agent.against:>4}", f"{agent.backed:>6}")
        if self.view.is_preview:  # the counts are unknown
            counts = ("   …", "   …", "     …")
        left_part.append(("  ".join(counts) + "  ", "text"))
        left_part.append(self._reputation(name))
        if alerts := self.view.run.alerts.by_agent.get(name):
            left_part.append(("! " + ", ".join(sorted(alerts)) + " ", "bad"))
        if agent.cannot_fire_reason:
            left_part.append((f"cannot fire: {agent.cannot_fire_reason}", "warn"))
        elif agent.last_vote is not None:
            left_part.append((vote_text(agent.last_vote), "dim"))
        return row(width, left_part)

    def _state(self, name: str, agent: AgentView) -> TextRun:
        """Return an agent's state. An active alert takes precedence."""
        standing = self.view.standing(name)
        if name in self.view.run.alerts.by_agent and standing != "left":
            return "alert", "bad"
        if standing == "live" and (agent.cannot_fire_reason or agent.is_newcomer):
            return ("no fire", "warn") if agent.cannot_fire_reason else ("newcomer", "warn")
        return standing, STANDING_KINDS[standing]

    def _reputation(self, name: str) -> TextRun:
        """Return an agent's reputation. It is red below the minimum in the rules for vetoes and the quorum."""
        reputation = self.view.reputations.get(name)
        if reputation is None:
            return "   –  ", "dim"
        min_reputation = self.view.run.started.rules.least_reputation if self.view.run.started else 0.0
        return f"{reputation:>4.2f}  ", "bad" if reputation < min_reputation else "text"


def _compact_row_count(agents: int, width: int) -> int:
    return math.ceil(agents / max(1, width // MIN_COMPACT_WIDTH))


def vote_text(vote: Vote) -> str:
    proposal = f"{vote.stance} {vote.actuator}"
    if vote.stance == "propose" and vote.value is not None:
        proposal += f" {format_value(vote.value)}"
    return f"{proposal}, confidence {vote.confidence:.2f}, tick {vote.tick}"

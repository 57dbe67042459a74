"""The panel of agents: a row each, with state, counts, reputation and last vote.

With many agents, those that proposed, objected or see a symptom have a row; the others share rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Size

from oven_core.protocol.messages import Vote
from oven_runs.log.run_summary import AgentView, format_value
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import fit, glyph, row
from oven_tui.model.monitor_view import MonitorView, Standing
from oven_tui.widgets.base import Lines, Panel

NAME = 17
CELL = 26
"""Fewest cells of an agent that shares a row. Together they use the row's whole width."""
MANY = 8
"""Number of agents above which only those that proposed or objected have their own row."""
STANDINGS: dict[Standing, str] = {"live": "good", "silent": "bad", "left": "dim"}


class Agents(Lines, Panel):
    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="agents")
        self.view = view
        self.border_title = "agents"
        self._counted = (0, 0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        own, shared = self._parted()
        return 1 + len(own) + _rows_for(len(shared), width)

    def redraw(self) -> None:
        own, shared = self._parted()
        if (len(own), len(shared)) != self._counted:
            self._counted = (len(own), len(shared))
            self.refresh(layout=True)  # its height is theirs
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[Run]]:
        if not self.view.agents:
            return [row(width, [("no agent has joined", "dim")])]
        own, shared = self._parted()
        if height < 1 + len(own) + _rows_for(len(shared), width):
            return self._closely(width, height, [*own, *shared])
        head = fit("agent", NAME + 2) + fit("state", 9) + "prop  agst  backed   rep  last vote"
        made = [row(width, [(head, "dim")])]
        made += [self._agent(width, index, name, self.view.run.agents[name]) for index, name in own]
        return made + self._closely(width, height, shared)

    def _parted(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return (position, name) of agents with their own row, and of those that share one."""
        every = list(enumerate(self.view.agents))
        if len(every) <= MANY:
            return every, []
        agents = self.view.run.agents
        alerting = self.view.run.alerts.by_agent
        own = [
            (index, name) for index, name in every if agents[name].proposals or agents[name].against or name in alerting
        ]
        return own, sorted(
            (entry for entry in every if entry not in own), key=lambda entry: bool(agents[entry[1]].cannot_fire)
        )

    def _closely(self, width: int, height: int, agents: Sequence[tuple[int, str]]) -> list[list[Run]]:
        across = max(1, width // CELL)
        cell = max(CELL, width // across)
        made: list[list[Run]] = []
        for start in range(0, len(agents), across):
            cells: list[Run] = []
            for index, name in agents[start : start + across]:
                agent = self.view.run.agents[name]
                state, kind = self._state(name, agent)
                sign, colour = glyph(index)
                cells += [(f"{sign} ", colour), (fit(name, cell - 11) + " ", "text"), (fit(state, 8), kind)]
            made.append(row(width, cells))
        if len(made) > height:
            hidden = len(agents) - across * (height - 1)
            made = [*made[: height - 1], row(width, [(f"and {hidden} more: a taller terminal shows them", "dim")])]
        return made

    def _agent(self, width: int, index: int, name: str, agent: AgentView) -> list[Run]:
        sign, colour = glyph(index)
        left_part: list[Run] = [(f"{sign} ", colour), (fit(name, NAME - 1) + " ", "text")]
        state, kind = self._state(name, agent)
        left_part.append((fit(state, 9), kind))
        counts = (f"{agent.proposals:>4}", f"{agent.against:>4}", f"{agent.backed:>6}")
        if self.view.preview:  # they are of a few samples
            counts = ("   …", "   …", "     …")
        left_part.append(("  ".join(counts) + "  ", "text"))
        left_part.append(self._reputation(name))
        if alerts := self.view.run.alerts.by_agent.get(name):
            left_part.append(("! " + ", ".join(sorted(alerts)) + " ", "bad"))
        if agent.cannot_fire:
            left_part.append((f"cannot fire: {agent.cannot_fire}", "warn"))
        elif agent.last_vote is not None:
            left_part.append((vote_text(agent.last_vote), "dim"))
        return row(width, left_part)

    def _state(self, name: str, agent: AgentView) -> Run:
        """Return an agent's state. An active alert has precedence."""
        standing = self.view.standing(name)
        if name in self.view.run.alerts.by_agent and standing != "left":
            return "alert", "bad"
        if standing == "live" and (agent.cannot_fire or agent.newcomer):
            return ("no fire", "warn") if agent.cannot_fire else ("newcomer", "warn")
        return standing, STANDINGS[standing]

    def _reputation(self, name: str) -> Run:
        """Return a reputation, red below the run's minimum: the agent counts for no quorum and has no veto."""
        reputation = self.view.reputations.get(name)
        if reputation is None:
            return "   –  ", "dim"
        least = self.view.run.started.rules.least_reputation if self.view.run.started else 0.0
        return f"{reputation:>4.2f}  ", "bad" if reputation < least else "text"


def _rows_for(agents: int, width: int) -> int:
    return -(-agents // max(1, width // CELL))


def vote_text(vote: Vote) -> str:
    what = f"{vote.stance} {vote.actuator}"
    if vote.stance == "propose" and vote.value is not None:
        what += f" {format_value(vote.value)}"
    return f"{what}, {vote.confidence:.2f} sure, tick {vote.tick}"

"""The agents of a run as a table: what each reads and moves, its state, and why it has nothing to do."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.terminal_text import counted
from oven_runs.log.decision_line import short_knob
from oven_runs.log.run_summary import AgentView, RunSummary

HEADER = ("agent", "state", "reads", "moves", "why, or its votes")


class AgentRow(BaseModel):
    """One agent in the output of `agent list --run`."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    agent: str
    state: Literal["active", "quiet", "idle", "failed", "shadow", "newcomer"] = Field(
        description="quiet: it has not voted; idle: it has nothing to do in this run; shadow, newcomer: its votes do "
        "not count"
    )
    reads: tuple[str, ...] = Field(description="patterns of the metrics without which it cannot vote")
    moves: tuple[str, ...] = Field(description="actuators that it may propose to change")
    reason: str = Field(description="why it is idle, failed, or is a shadow; otherwise empty")
    proposals: int
    against: int
    backed: int = Field(description="adopted decisions that it voted for")

    def cells(self) -> tuple[str, ...]:
        """Return the row's text in the columns of HEADER."""
        counts = ((self.proposals, "proposal"), (self.against, "objection"))
        votes = [counted(number, noun) for number, noun in counts if number]
        votes += [f"voted for {counted(self.backed, 'adopted decision')}"] if self.backed else []
        text = self.reason or ", ".join(votes)
        return self.agent, self.state, ", ".join(self.reads) or "–", ", ".join(map(short_knob, self.moves)) or "–", text


def agent_rows(view: RunSummary) -> list[AgentRow]:
    """Return the agents of a run by name. Those with nothing to do are last."""
    rows = [_row(name, agent) for name, agent in sorted(view.agents.items())]
    return sorted(rows, key=lambda row: row.state == "idle")


def _row(name: str, agent: AgentView) -> AgentRow:
    state, reason = _state(agent)
    return AgentRow(
        agent=name, state=state, reads=agent.needs, moves=agent.moves, reason=reason, proposals=agent.proposals,
        against=agent.against, backed=agent.backed,
    )  # fmt: skip


def _state(agent: AgentView) -> tuple[Literal["active", "quiet", "idle", "failed", "shadow", "newcomer"], str]:
    if agent.failure_reason:
        return "failed", agent.failure_reason
    if agent.idle_reason:
        return "idle", agent.idle_reason
    if agent.shadow_reason:
        return "shadow", agent.shadow_reason
    if agent.is_newcomer:
        return "newcomer", ""
    return ("active" if agent.last_vote else "quiet"), ""

"""The report of a backtest, as `backtest --json` prints it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import Real, Value


class BacktestVote(BaseModel):
    """One vote of the agent, and its outcome in the backtest and in the recording."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    tick: int
    actuator: str
    stance: str
    value: Value
    confidence: Real
    target: str
    expected_change: Real
    horizon: int
    rationale: str
    counted: bool = Field(description="whether the vote is on a ballot, or was decided at once")
    verdict: str | None = Field(description="null: its ballot did not close, or it did not count")
    decided_value: Value
    reason: str | None
    change_in_recording: float | None = Field(
        description="the target's change in the recording up to the vote's horizon; null: not measured on both sides"
    )
    carried_out_in_recording: bool


class BacktestNotice(BaseModel):
    """A text of the agent for people."""

    model_config = ConfigDict(frozen=True)

    tick: int
    text: str


class BacktestDivergence(BaseModel):
    """The first decision that differs from the recorded one."""

    model_config = ConfigDict(frozen=True)

    tick: int
    actuator: str
    logged: str
    computed: str


class BacktestReport(BaseModel):
    """The whole report. Open loop: the recording continues as it went, whatever is decided here."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    agent: str
    run: str
    ticks: int
    votes: tuple[BacktestVote, ...]
    votes_left_out: int = Field(default=0, description="older votes that the report omits because it was limited")
    proposals: int
    proposals_per_1000_ticks: float | None
    decisions: dict[str, int] = Field(description="verdict → how many, of those on its proposals")
    cannot_fire: str = Field(description="why it can never vote in this run; empty: it can")
    problems: tuple[str, ...] = Field(description="tracebacks of the agent's own code")
    notices: tuple[BacktestNotice, ...]
    took_part: bool = Field(description="whether it took part in the recording")
    same_votes: bool | None = Field(description="whether it voted there as it does here; null: it took no part")
    shadow: bool = Field(description="it was a shadow there, and its votes count here")
    divergences: int
    first_divergence: BacktestDivergence | None
    ignored_receipts: int
    open_loop: Literal[True] = True
    rules: dict[str, Any] = Field(description="rules that replaced those of the recording")
    hints: tuple[str, ...] = Field(default=(), description="what the recording's metrics lack")

    def newest(self, most: int) -> BacktestReport:
        """The same report with at most `most` votes, the newest."""
        return self.model_copy(update={"votes": self.votes[-most:], "votes_left_out": len(self.votes[:-most])})

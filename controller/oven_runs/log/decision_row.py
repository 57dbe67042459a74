"""Summarise a decision in one row: step, proposer, change, verdict, receipt and outcome."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import UnknownNameError
from oven_core.protocol.messages import Real, Value
from oven_runs.log.explanation import Explanation
from oven_runs.log.run_summary import Verdict, format_value, verdict_text
from oven_runs.log.since_option import BEGINNING, Since


class DecisionRow(BaseModel):
    """One decision in the JSON output of `decisions --json`."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    id: str
    ballot: str = Field(description="id of the ballot; empty if there was none")
    seq: int = Field(description="sequence number of the decision's event in the log")
    time: datetime
    tick: int
    step: int = Field(description="the optimizer step at the decision; steps decrease after a rollback")
    who: str = Field(description="the agent that proposed the change, or the person who gave the command")
    by_operator: bool = Field(description="whether `who` is a person")
    actuator: str
    before: Value = Field(description="the value before the decision, as far as the mesh knew")
    value: Value = Field(description="the value to set, or the proposed value if the proposal was rejected")
    verdict: Verdict
    reason: str
    approved_by: str = Field(description="the decision that carries out this advice; empty if there is none")
    receipt: str | None = Field(description="applied, noop, rejected, skipped, expired or unknown; null if none")
    after: Value = Field(description="the value that was read back")
    receipt_step: int | None
    target: str = Field(description="the metric by which the outcome is scored; empty if the proposal names none")
    expected_change: Real = Field(description="the proposed change of the target within the horizon")
    forecast: Real | None = Field(description="the expected gain, positive for an improvement; null before the outcome")
    gain: Real | None = Field(description="the measured gain, positive for an improvement; null if unknown")
    noise: Real | None = Field(description="the gain's standard error")
    scored: bool | None = Field(description="whether the outcome could be scored; null before the outcome")
    outcome: str = Field(description="the outcome's reason; empty before the outcome")


def decision_row(explanation: Explanation) -> DecisionRow:
    """Convert an explanation to a row."""
    decision, receipt, outcome = explanation.decision, explanation.receipt, explanation.outcome
    return DecisionRow(
        id=decision.id,
        ballot=decision.ballot,
        seq=explanation.seq,
        time=explanation.time,
        tick=decision.tick,
        step=explanation.step,
        who=explanation.proposer,
        by_operator=bool(explanation.operator),
        actuator=decision.actuator,
        before=decision.before,
        value=decision.value,
        verdict=decision.verdict,
        reason=decision.reason,
        approved_by=explanation.approved_by,
        receipt=receipt and receipt.status,
        after=receipt and receipt.after,
        receipt_step=receipt and receipt.step,
        target=outcome.target if outcome is not None else decision.target,
        expected_change=decision.expected_change,
        forecast=outcome.forecast if outcome is not None else None,
        gain=outcome.gain if outcome is not None else None,
        noise=outcome.noise if outcome is not None else None,
        scored=outcome.scored if outcome is not None else None,
        outcome=outcome.reason if outcome is not None else "",
    )


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Conditions for selecting decisions. An empty filter matches every decision."""

    since: Since = BEGINNING
    actuator: str = ""
    agent: str = ""
    """An agent that voted on the decision, or the agent or operator that proposed it."""
    verdict: str = ""

    def matches(self, explanation: Explanation, newest_time: datetime | None) -> bool:
        """Whether the decision meets all conditions. `newest_time` is the time of the log's newest event."""
        decision = explanation.decision
        voters = {line.agent for line in decision.tally if line.stance != "silent"} | {explanation.proposer}
        return (
            self.since.includes(explanation.step, explanation.time, newest_time)
            and self.actuator in ("", decision.actuator)
            and (not self.agent or self.agent in voters)
            and self.verdict in ("", verdict_text(decision.verdict, decision.reason))
        )

    def check_names(self, explanations: Iterable[Explanation]) -> None:
        """Raise UnknownNameError if there are decisions, but none of them has this actuator or agent."""
        actuators, agents = set[str](), set[str]()
        for explanation in explanations:
            actuators.add(explanation.decision.actuator)
            agents |= {line.agent for line in explanation.decision.tally} | {explanation.proposer}
        for kind, name, known_names in (("actuator", self.actuator, actuators), ("agent", self.agent, agents - {""})):
            if name and known_names and name not in known_names:
                raise UnknownNameError(f"{kind} with a decision", name, known_names)


_ROW: Final = "{:>6}  {:<16}  {:<40}  {:<9}  {}"
"""Format of a row with step, proposer, change, verdict and details. The widths are fixed, so that later rows align."""
HEADER: Final = _ROW.format("step", "who", "what", "verdict", "id, receipt, outcome")


def format_row(row: DecisionRow) -> str:
    """Format the row as a line of text."""
    proposer = f"operator {row.who}" if row.by_operator else row.who
    change = f"{row.actuator} {format_value(row.before)} → {format_value(row.value)}"
    details = "; ".join(part for part in (row.id, _receipt_text(row), _outcome_text(row)) if part)
    return _ROW.format(row.step, proposer, change, verdict_text(row.verdict, row.reason), details)


def _receipt_text(row: DecisionRow) -> str:
    if row.receipt is not None:
        return f"{row.receipt} {format_value(row.after)} at step {row.receipt_step}"
    if row.verdict == "adopted":
        return "no receipt yet"
    return f"approved by {row.approved_by}" if row.approved_by else ""


def _outcome_text(row: DecisionRow) -> str:
    if row.gain is None:
        return f"not scored: {row.outcome}" if row.scored is False else row.outcome
    forecast = f", forecast {row.forecast:+.3g}" if row.forecast is not None else ""
    noise = f" ± {row.noise:.2g}" if row.noise is not None else ""
    return f"{row.target} {row.gain:+.3g}{noise}{forecast}"

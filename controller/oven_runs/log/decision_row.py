"""A decision in one row: when, who, what, the verdict, what was read back, and the effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field

from oven_core.errors import UnknownNameError
from oven_core.protocol.messages import Real, Value
from oven_runs.log.explanation import Explanation
from oven_runs.log.run_summary import text
from oven_runs.log.since import BEGINNING, Since

Verdict: TypeAlias = Literal["adopted", "rejected", "advised"]
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)


class DecisionRow(BaseModel):
    """One decision, as `decisions --json` prints it."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    id: str
    ballot: str = Field(description="empty where none was open")
    seq: int = Field(description="of its event in the log")
    time: datetime
    tick: int
    step: int = Field(description="the optimizer step at which it was decided; a rollback takes it back")
    who: str = Field(description="the agent that proposed it, or the person who gave the command")
    by_operator: bool = Field(description="whether `who` is a person")
    actuator: str
    before: Value = Field(description="the value that the mesh knew of")
    value: Value = Field(description="what to set; on a rejected ballot what was asked for")
    verdict: Verdict
    reason: str
    approved_by: str = Field(description="the decision that carries this advice out; empty while none does")
    receipt: str | None = Field(description="applied, noop, rejected, skipped, expired or unknown; null: none yet")
    after: Value = Field(description="the value that was read back")
    receipt_step: int | None
    target: str = Field(description="the metric by which it is judged; empty: none was named")
    expected_change: Real = Field(description="of the target within the horizon, as it was proposed")
    forecast: Real | None = Field(description="the same in the target's better direction; null: there is no outcome")
    gain: Real | None = Field(description="what the target gained, in its better direction; null: not known")
    noise: Real | None = Field(description="the gain's standard error")
    scored: bool | None = Field(description="whether the outcome says anything; null: there is none yet")
    outcome: str = Field(description="the outcome's reason; empty: there is none yet")


def row(found: Explanation) -> DecisionRow:
    """The explanation in one row."""
    decision, receipt, outcome = found.decision, found.receipt, found.outcome
    return DecisionRow(
        id=decision.id,
        ballot=decision.ballot,
        seq=found.seq,
        time=found.time,
        tick=decision.tick,
        step=found.step,
        who=found.proposer,
        by_operator=bool(found.operator),
        actuator=decision.actuator,
        before=decision.before,
        value=decision.value,
        verdict=decision.verdict,
        reason=decision.reason,
        approved_by=found.approved_by,
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
class Wanted:
    """Which decisions are asked for; empty: all."""

    since: Since = BEGINNING
    actuator: str = ""
    agent: str = ""
    """One that voted on it, opened it, or gave the command."""
    verdict: str = ""

    def holds(self, found: Explanation, newest: datetime | None) -> bool:
        """`newest`: the time of the log's newest event."""
        decision = found.decision
        voted = {line.agent for line in decision.tally if line.stance != "silent"} | {found.proposer}
        return (
            self.since.holds(found.step, found.time, newest)
            and self.actuator in ("", decision.actuator)
            and (not self.agent or self.agent in voted)
            and self.verdict in ("", decision.verdict)
        )

    def check(self, found: Iterable[Explanation]) -> None:
        """Raises UnknownNameError where no decision of the run has such an actuator or agent, but others."""
        decisions = list(found)
        actuators = {one.decision.actuator for one in decisions}
        agents = {line.agent for one in decisions for line in one.decision.tally} | {one.proposer for one in decisions}
        for kind, name, known in (("actuator", self.actuator, actuators), ("agent", self.agent, agents - {""})):
            if name and known and name not in known:
                raise UnknownNameError(f"{kind} with a decision", name, known)


STEP, WHO, WHAT, VERDICT = 6, 16, 40, 8
HEAD: Final = f"{'step':>{STEP}}  {'who':<{WHO}}  {'what':<{WHAT}}  {'verdict':<{VERDICT}}  id, receipt, outcome"


def line(found: DecisionRow) -> str:
    """The row for people. Its first columns keep their width, so that rows that come later stand below."""
    who = f"operator {found.who}" if found.by_operator else found.who
    what = f"{found.actuator} {text(found.before)} → {text(found.value)}"
    rest = "; ".join(part for part in (found.id, _receipt(found), _outcome(found)) if part)
    return f"{found.step:>{STEP}}  {who:<{WHO}}  {what:<{WHAT}}  {found.verdict:<{VERDICT}}  {rest}"


def _receipt(found: DecisionRow) -> str:
    if found.receipt is None:
        waits = found.verdict == "adopted"
        return "no receipt yet" if waits else f"approved by {found.approved_by}" if found.approved_by else ""
    return f"{found.receipt} {text(found.after)} at step {found.receipt_step}"


def _outcome(found: DecisionRow) -> str:
    if found.gain is None:
        return f"not scored: {found.outcome}" if found.scored is False else found.outcome
    forecast = f", forecast {found.forecast:+.3g}" if found.forecast is not None else ""
    noise = f" ± {found.noise:.2g}" if found.noise is not None else ""
    return f"{found.target} {found.gain:+.3g}{noise}{forecast}"

"""An explanation as `explain --json` prints it: the log's messages, and what follows from them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import BallotOpened, Decision, Outcome, Receipt, Vote
from oven_runs.log.cited_paths import CitedPath, cited_paths
from oven_runs.log.explanation import Explanation
from oven_runs.log.other_rules import OtherRuling


class ExplanationReport(BaseModel):
    """A decision with everything the log has about it; null if the log has nothing."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    seq: int = Field(description="of the decision's event")
    time: datetime
    step: int = Field(description="the optimizer step at which it was decided")
    who: str = Field(description="the agent that proposed it, or the person who gave the command")
    by_operator: bool
    decision: Decision
    opened: BallotOpened | None
    votes: dict[str, Vote] = Field(description="agent → its last vote on the ballot, as it was cast")
    paths: tuple[CitedPath, ...] = Field(description="paths through the knowledge graph that votes cite")
    approved_by: str = Field(description="the decision that carries out this advice; empty if there is none")
    receipt: Receipt | None
    outcome: Outcome | None
    later: Receipt | None = Field(description="the learner's own later receipt for the actuator")
    announced: ActuatorAnnounced | None
    injected: tuple[PromptsInjected, ...] = Field(description="prompts added until its outcome")
    other_rules: OtherRuling | None = Field(description="the decision under other rules; null: none were requested")


def report(run: str, explanation: Explanation, other: OtherRuling | None = None) -> ExplanationReport:
    """Return the explanation as one message."""
    return ExplanationReport(
        run=run,
        seq=explanation.seq,
        time=explanation.time,
        step=explanation.step,
        who=explanation.proposer,
        by_operator=bool(explanation.operator),
        decision=explanation.decision,
        opened=explanation.opened,
        votes=dict(explanation.votes),
        paths=cited_paths(explanation.votes),
        approved_by=explanation.approved_by,
        receipt=explanation.receipt,
        outcome=explanation.outcome,
        later=explanation.later,
        announced=explanation.announced,
        injected=explanation.injected,
        other_rules=other,
    )

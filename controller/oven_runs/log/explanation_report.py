"""An explanation as `explain --json` prints it: the messages as they are in the log, and what they come to."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import BallotOpened, Decision, Outcome, Receipt, Vote
from oven_runs.log.cited_paths import CitedPath, cited_paths
from oven_runs.log.explanation import Explanation
from oven_runs.log.other_rules import OtherRuling


class ExplanationReport(BaseModel):
    """A decision with what the log says of it; null where it says nothing."""

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
    paths: tuple[CitedPath, ...] = Field(description="through the knowledge graph, as votes cite them")
    approved_by: str = Field(description="the decision that carries this advice out; empty while none does")
    receipt: Receipt | None
    outcome: Outcome | None
    later: Receipt | None = Field(description="what the learner said of the actuator afterwards by itself")
    announced: ActuatorAnnounced | None
    injected: tuple[PromptsInjected, ...] = Field(description="prompts that were added until it was judged")
    other_rules: OtherRuling | None = Field(description="null: none were asked about")


def report(run: str, found: Explanation, other: OtherRuling | None = None) -> ExplanationReport:
    """The explanation as one message."""
    return ExplanationReport(
        run=run,
        seq=found.seq,
        time=found.time,
        step=found.step,
        who=found.proposer,
        by_operator=bool(found.operator),
        decision=found.decision,
        opened=found.opened,
        votes=dict(found.votes),
        paths=cited_paths(found.votes),
        approved_by=found.approved_by,
        receipt=found.receipt,
        outcome=found.outcome,
        later=found.later,
        announced=found.announced,
        injected=found.injected,
        other_rules=other,
    )

"""The JSON output of `explain --json`."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import BallotOpened, Decision, Outcome, Receipt, Vote
from oven_runs.log.cited_paths import CitedPath, cited_paths
from oven_runs.log.explanation import Explanation


class AlternativeDecision(BaseModel):
    """The decision that the mesh would have made under other rules."""

    model_config = ConfigDict(frozen=True, defer_build=True, ser_json_inf_nan="strings")

    rules: dict[str, Any] = Field(description="the rules that replace the run's rules of the same name")
    same: bool = Field(description="whether verdict, value and ticks are the same")
    decision: Decision | None = Field(
        description="the decision at the same tick, or the next one on the same actuator; null if there is none"
    )
    earlier_divergence: str = Field(
        description="the first earlier decision that would differ, after which the log is that of a different run; "
        "empty if there is none"
    )

    def lines(self) -> list[str]:
        """Format the comparison as lines of text."""
        from oven_runs.log.counterfactual import decision_text

        changed_rules = ", ".join(f"rules.{name} = {value}" for name, value in self.rules.items())
        result = "the same" if self.same else decision_text(self.decision)
        lines = [f"with {changed_rules}: {result}"]
        if self.earlier_divergence:
            lines.append(f"  less certain, because an earlier decision would differ too: {self.earlier_divergence}")
        return lines


class ExplanationReport(BaseModel):
    """A decision with everything that the log contains about it. A field is null if the log has no such message."""

    model_config = ConfigDict(frozen=True, defer_build=True, ser_json_inf_nan="strings")

    run: str
    seq: int = Field(description="sequence of the decision's event")
    time: datetime
    step: int = Field(description="the optimizer step at which the decision was made")
    who: str = Field(description="the agent that proposed the change, or the person who gave the command")
    by_operator: bool
    decision: Decision
    opened: BallotOpened | None
    votes: dict[str, Vote] = Field(description="agent → its last vote on the ballot, as it was cast")
    paths: tuple[CitedPath, ...] = Field(description="paths through the knowledge graph that votes cite")
    approved_by: str = Field(description="the decision that carries out this advice; empty if there is none")
    receipt: Receipt | None
    outcome: Outcome | None
    later_receipt: Receipt | None = Field(description="a later receipt for the actuator that belongs to no decision")
    announced: ActuatorAnnounced | None
    injected: tuple[PromptsInjected, ...] = Field(description="prompts added between the decision and its outcome")
    other_rules: AlternativeDecision | None = Field(
        description="the decision under other rules; null if no other rules were requested"
    )


def report(run: str, explanation: Explanation, alternative: AlternativeDecision | None = None) -> ExplanationReport:
    """Return the JSON report of an explanation."""
    return ExplanationReport(
        run=run,
        who=explanation.proposer,
        by_operator=bool(explanation.operator),
        paths=cited_paths(explanation.votes),
        other_rules=alternative,
        # All other fields have the same names in both classes. The report has no field `operator`.
        **{field.name: getattr(explanation, field.name) for field in fields(explanation) if field.name != "operator"},
    )

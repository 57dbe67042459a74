"""The rules by which the mesh turns votes into decisions. Every log contains them, in RunStarted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

Autonomy = Literal["observe", "advise", "auto"]
"""`observe` logs the decision that would have been made and changes nothing. `advise` waits for a person. `auto`
acts."""
NEEDS_GRANT: Final = ("run.stop",)
"""Actuators that are `auto` only if they are named. If all actuators are `auto`, these are `advise`, because a person
decides whether their run ends early."""
ALL: Final = "*"
"""A grant for all actuators, in `Rules.trusted` and `Rules.alone`."""


class Rules(BaseModel):
    """All settings of ballots, guardrails, trust and outcomes. A tick is one observation."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")  # newer logs may have more fields

    window_ticks: int = Field(default=3, ge=1, le=1000, description="ticks after which an open ballot closes")
    silent_ticks: int = Field(default=50, ge=2, description="ticks of silence after which an agent counts as lost")
    apply_delay_ticks: int = Field(default=1, ge=1, description="ticks from a decision to its application")
    expire_ticks: int = Field(default=20, ge=1, description="ticks from apply_at_tick until a decision expires")
    expire_seconds: float = Field(
        default=0.0,
        ge=0,
        le=60,
        description="minimum lifetime of a decision in seconds, converted to ticks at the current pace of the log; the "
        "longer of this and `expire_ticks` counts; ignored in lockstep; 0 (as in older logs): only ticks count",
    )

    evidence_kinds: int = Field(
        default=2,
        ge=1,
        le=2,
        description="number of independent kinds of evidence that a change needs. Exceptions: agents that may decide "
        "alone, harm beyond doubt, and changes that do not affect the training at once. 1: one trusted proposal is "
        "enough",
    )
    quorum_confidence: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="minimum confidence of a proposal that is enough alone, by a grant or in an exception, and of "
        "at least one of two votes with independent evidence",
    )
    small_factor: float = Field(
        default=2.0,
        gt=1,
        description="largest factor on a log-scaled value in a small change, for which one kind of evidence and the "
        "knowledge graph are enough",
    )
    small_fraction: float = Field(
        default=0.1, gt=0, le=1, description="largest step of a linear value in a small change, as a share of its range"
    )
    small_shift: float = Field(
        default=0.2, gt=0, le=1, description="largest total variation of a simplex in a small change"
    )
    veto_confidence: float = Field(
        default=0.7, ge=0, le=1, description="minimum confidence at which a vote `against` is a veto"
    )
    majority: float = Field(default=2 / 3, gt=0.5, le=1, description="share of weight that the winning side needs")

    max_factor: float = Field(default=10.0, gt=1, description="largest factor on a log-scaled value in one decision")
    max_fraction: float = Field(
        default=0.25, gt=0, le=1, description="largest step of a linear value in one decision, as a share of its range"
    )
    max_shift: float = Field(
        default=0.7, gt=0, le=1, description="largest total variation of a simplex in one decision"
    )
    least_change: float = Field(
        default=0.02, ge=0, description="relative change below which a proposal counts as no change"
    )
    cooldown_ticks: int = Field(default=5, ge=0, description="ticks between two decisions on one actuator")
    max_interventions: int = Field(default=40, ge=0, description="maximum number of adopted decisions per run")
    contradictions: tuple[tuple[str, str], ...] = Field(
        default=(
            ("run.rollback", "optimizer.lr_scale:up"),
            ("run.hold", "run.rollback"),
            ("run.rollback", "run.undo_rollback"),
        ),
        description="pairs of changes that must not be in flight together; `:up` or `:down` selects a direction",
    )
    requires: tuple[tuple[str, str], ...] = Field(
        default=(),
        description='pairs of a change and its requirement: "actuator:NAME", "metric:PATTERN" or "held_out"; a change '
        "with an unmet requirement is rejected",
    )

    newcomers: Literal["probation", "full"] = Field(
        default="probation",
        description="rights of agents without a grant. On `probation`, their votes neither decide nor veto until they "
        "have enough good outcomes. `full` trusts them on all actuators",
    )
    trusted: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="agent → actuators on which its votes decide and veto; `*`: all of them. Installed agents have `*`",
    )
    alone: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="agent → actuators on which it is trusted and decides alone: its proposal needs no second kind of "
        "evidence; `*`: all of them",
    )
    trusted_after: int = Field(
        default=2,
        ge=1,
        description="good outcomes of its approved ballots after which a newcomer is trusted with an actuator",
    )
    least_confidence: float = Field(
        default=0.2, ge=0, le=1, description="minimum confidence of a proposal that opens a ballot"
    )
    votes_per_tick: int = Field(default=16, ge=1, description="maximum votes per agent and tick")
    open_ballots: int = Field(default=8, ge=1, description="maximum open ballots per agent")
    reversals: int = Field(
        default=3,
        ge=1,
        description="quick changes of direction of an actuator after which the agent that made them loses its vote "
        "there; if several agents each pulled in one direction, only a person may decide",
    )

    shadow: tuple[str, ...] = Field(default=(), description="agents whose votes are logged and scored, but not counted")
    approve_ticks: int = Field(default=100, ge=1, description="ticks for which an advised decision can be approved")
    approve_minutes: float = Field(
        default=0.0,
        ge=0,
        le=10_080,
        description="minutes for which an advised decision can be approved, converted to ticks at the pace of the "
        "newest 50 observations; the longer of this and `approve_ticks` counts; 0: only ticks count",
    )

    outcome_ticks: int = Field(default=20, ge=2, description="minimum horizon of a decision, in ticks")
    outcome_samples: int = Field(default=3, ge=2, description="measurements that an outcome needs on each side")
    reputation_rate: float = Field(default=0.3, gt=0, lt=1, description="rate at which one outcome moves a reputation")
    reputation_share: float = Field(
        default=0.005, ge=0, lt=1, description="share by which each outcome brings all reputations closer to 1"
    )
    reputation_most: float = Field(default=2.0, ge=1, description="maximum reputation")
    least_reputation: float = Field(
        default=0.25, ge=0, le=1, description="reputation below which a vote cannot be part of a quorum or be a veto"
    )
    shadow_reputation: float = Field(default=0.1, ge=0, le=1, description="reputation below which an agent is a shadow")
    harm_charge: float = Field(
        default=0.6, ge=0, lt=1, description="share of its reputation that an agent loses if it supported clear harm"
    )

    autonomy: Autonomy = Field(
        default="auto",
        description="autonomy for actuators that are not in `autonomy_of`; with `auto`, `run.stop` is `advise`",
    )
    autonomy_of: dict[str, Autonomy] = Field(default_factory=dict, description="autonomy by actuator")

    def with_grants_for(self, agents: Iterable[str]) -> Rules:
        """Return these rules with trust in all actuators for each of `agents` that has no grant yet."""
        grants = {name: (ALL,) for name in agents}
        return self.model_copy(update={"trusted": {**grants, **self.trusted}})

    def autonomy_for(self, actuator: str, operators: Mapping[str, Autonomy] = MappingProxyType({})) -> Autonomy:
        """Return the autonomy of an actuator. `operators` are the levels that operators have set, with "" for all
        actuators, and take precedence."""
        if actuator in operators:
            return operators[actuator]
        if "" not in operators and actuator in self.autonomy_of:
            return self.autonomy_of[actuator]
        level = operators.get("", self.autonomy)
        return "advise" if level == "auto" and actuator in NEEDS_GRANT else level

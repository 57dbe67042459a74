"""The rules by which the mesh turns votes into decisions. `RunStarted` has them, so the log does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

Autonomy = Literal["observe", "advise", "auto"]
"""`observe` logs what would have been decided and changes nothing; `advise` waits for a person; `auto` acts."""
ALL: Final = "*"
"""In a grant: trusted on every actuator, and a specialist for those that it declares as its speciality."""


class Rules(BaseModel):
    """Every number that a tally or a guardrail reads. Ticks are observations, not seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # on the wire; settings forbid what is unknown

    window_ticks: int = Field(default=3, ge=1, le=1000, description="ticks after which an open ballot closes")
    silent_ticks: int = Field(default=50, ge=2, description="an agent that said nothing for so many ticks is lost")
    apply_delay_ticks: int = Field(default=1, ge=1, description="ticks from a decision to its application")
    expire_ticks: int = Field(default=20, ge=1, description="ticks after apply_at_tick when a decision lapses")

    specialist_confidence: float = Field(default=0.6, ge=0, le=1, description="one specialist is a quorum from here on")
    agreeing: int = Field(default=2, ge=1, description="so many agreeing agents are a quorum whatever their confidence")
    veto_confidence: float = Field(default=0.7, ge=0, le=1, description="an `against` this sure is a veto")
    majority: float = Field(default=2 / 3, gt=0.5, le=1, description="share of weight that the winning side needs")

    max_factor: float = Field(default=10.0, gt=1, description="largest change of a log-scaled value in one decision")
    max_fraction: float = Field(default=0.25, gt=0, le=1, description="the same for linear ones, of the bounds' range")
    max_shift: float = Field(default=0.7, gt=0, le=1, description="the same for a simplex, as total variation")
    least_change: float = Field(default=0.02, ge=0, description="relative change below which a proposal is no change")
    cooldown_ticks: int = Field(default=5, ge=0, description="ticks between two decisions on one actuator")
    max_interventions: int = Field(default=40, ge=0, description="adopted decisions in a run, all actuators together")
    contradictions: tuple[tuple[str, str], ...] = Field(
        default=(
            ("run.rollback", "optimizer.lr_scale:up"),
            ("run.hold", "run.rollback"),
            ("run.rollback", "run.undo_rollback"),
        ),
        description="pairs that must not be in flight together; `:up` or `:down` narrows one to a direction",
    )
    requires: tuple[tuple[str, str], ...] = Field(
        default=(),
        description='what a change needs, as (change, need): the change as above, the need as "actuator:NAME", '
        '"metric:PATTERN" or "held_out"; an unmet need bars the decision',
    )

    newcomers: Literal["probation", "full"] = Field(
        default="probation",
        description="what agents without a grant may do: vote without carrying or vetoing a ballot until outcomes have "
        "shown their worth, or all that the others may",
    )
    trusted: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="grants: agent → actuators on which it is trusted and a specialist; `*`: all, and a specialist "
        "where it says so; installed agents have it",
    )
    trusted_after: int = Field(
        default=2, ge=1, description="good outcomes of ballots that it opened after which a newcomer is trusted there"
    )
    least_confidence: float = Field(default=0.2, ge=0, le=1, description="a proposal below it opens no ballot")
    votes_per_tick: int = Field(default=16, ge=1, description="votes of one agent that count in one tick")
    open_ballots: int = Field(default=8, ge=1, description="ballots that one agent may have opened at a time")
    reversals: int = Field(
        default=3, ge=1, description="changes of direction in quick succession that leave an actuator to a person"
    )

    shadow: tuple[str, ...] = Field(default=(), description="agents whose votes are logged and scored and do not count")
    approve_ticks: int = Field(default=100, ge=1, description="ticks for which an advised decision can be approved")
    approve_minutes: float = Field(
        default=0.0,
        ge=0,
        le=10_080,
        description="minutes for which it can be, where those are more ticks than `approve_ticks`: counted in ticks at "
        "the pace of the newest 50 observations when it is advised; 0: ticks alone",
    )

    outcome_ticks: int = Field(
        default=20, ge=2, description="horizon of a decision whose proposal named none or a shorter one"
    )
    outcome_samples: int = Field(default=3, ge=2, description="measurements that an outcome needs on either side")
    reputation_rate: float = Field(default=0.3, gt=0, lt=1, description="how far one outcome moves a reputation")
    reputation_share: float = Field(default=0.005, ge=0, lt=1, description="how far each outcome takes all back to 1")
    reputation_most: float = Field(default=2.0, ge=1, description="a reputation's upper bound")
    least_reputation: float = Field(
        default=0.25, ge=0, le=1, description="below it a vote counts for no quorum and is no veto"
    )
    shadow_reputation: float = Field(default=0.1, ge=0, le=1, description="below it an agent is a shadow")
    harm_charge: float = Field(
        default=0.6,
        ge=0,
        lt=1,
        description="share of its reputation that clear harm costs each agent that carried it; 0: none",
    )

    autonomy: Autonomy = Field(default="auto", description="for every actuator that `autonomy_of` does not name")
    autonomy_of: dict[str, Autonomy] = Field(default_factory=dict, description="per actuator")

    def trusting(self, agents: Iterable[str]) -> Rules:
        """These rules with a grant for each of `agents` that has none: installed agents, and those of a closed run."""
        given = {name: (ALL,) for name in agents}
        return self.model_copy(update={"trusted": {**given, **self.trusted}})

    def autonomy_for(self, actuator: str) -> Autonomy:
        """What `autonomy_of` says of the actuator, else `autonomy`."""
        return self.autonomy_of.get(actuator, self.autonomy)

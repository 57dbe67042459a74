"""The state of a reward committee's remote members (model, weight, status), computed from the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oven_core.protocol.announcements import ActuatorAnnounced, with_announced
from oven_core.protocol.events import Event
from oven_core.protocol.judge_spec import OFF, actuator_of, member_of
from oven_core.protocol.messages import Observation, Receipt, RunStarted, Value

WEIGHTS = "reward.weights"
"""The knob for the members' weights."""
SCORED_METRIC = "committee/skipped_groups"
"""A metric that appears in every step scored by the committee."""


@dataclass(frozen=True)
class MemberView:
    """The state of one remote member of the committee."""

    member: str
    judge: str
    """Identity of the member's model, or OFF."""
    role: str
    weight: float | None
    """The member's weight; None if the run announces no weights."""
    state: str
    """"scoring", "muted", "quarantined", "abstaining: <kinds>" or "not asked", as of the newest scored step."""
    choices: tuple[str, ...]
    """The values that `set committee.<member>` accepts."""


@dataclass
class CommitteeView:
    """The committee's state. Pass the log's events to `feed` in order."""

    started: RunStarted | None = None
    knobs: dict[str, Value] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the newest step that the committee scored."""

    def feed(self, event: Event) -> None:
        """Add the next event."""
        match event.body:
            case RunStarted() as body:
                self.started = body
                self.knobs = {spec.name: spec.value for spec in body.actuators}
            case ActuatorAnnounced() as body if self.started is not None:
                self.started = with_announced(self.started, body)
                self.knobs[body.actuator.name] = body.actuator.value
            case Receipt() as body if body.status in ("applied", "noop"):
                self.knobs[body.actuator] = body.after
            case Observation() as body if SCORED_METRIC in body.metrics:
                self.metrics = body.metrics

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The models of each member. A removed member, whose only choice is OFF, is omitted."""
        specs = self.started.actuators if self.started is not None else ()
        return {member_of(spec.name): spec.choices for spec in specs if member_of(spec.name) and spec.choices != (OFF,)}

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of every member, including reward rules; empty if the run announces no weights."""
        weights = self.knobs.get(WEIGHTS)
        return weights if isinstance(weights, Mapping) else {}

    def judge(self, member: str) -> str:
        """Return the identity of a member's model, or OFF."""
        return str(self.knobs.get(actuator_of(member)))

    def member_views(self, roles: Mapping[str, str]) -> list[MemberView]:
        """Return the remote members in announcement order. `roles` (by member) come from the run's settings."""
        weights = self.weights
        return [
            MemberView(
                member, self.judge(member), roles.get(member, ""), weights.get(member), self._state(member), choices
            )
            for member, choices in self.members.items()
        ]

    def _state(self, member: str) -> str:
        if self.knobs.get(actuator_of(member)) == OFF:
            return "muted"
        prefix = abstention_metric(member, "")
        abstentions = {name.removeprefix(prefix): n for name, n in self.metrics.items() if name.startswith(prefix)}
        if "quarantined" in abstentions:
            return "quarantined"
        if abstentions:
            return "abstaining: " + ", ".join(f"{kind} {count:g}" for kind, count in sorted(abstentions.items()))
        return "scoring" if f"rewards/{member}/mean" in self.metrics else "not asked"


def abstention_metric(member: str, kind: str) -> str:
    """Return the name of the metric that counts a member's abstentions of one kind."""
    return f"rewards/{member}/abstain/{kind}"

"""An open ballot: who may vote on it, what they said, and when it closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import Fault, clip, outside, shaped, show
from oven_core.mesh.state import Agent, State
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Value, Vote

_FREE = {"value": None, "choices": (), "low": None, "high": None, "unit": ""}
"""What an actuator may announce anew without its open ballot meaning something else."""


@dataclass(frozen=True, slots=True)
class Cast:
    """An agent's last word on a ballot. `value` is what it wants: its own proposal, or for `for` the opening one."""

    vote: Vote
    value: Value


@dataclass(slots=True)
class Ballot:
    """`casts` has shadow agents' votes too: who counts is decided when it closes."""

    opened: BallotOpened
    casts: dict[str, Cast] = field(default_factory=dict)

    def take(self, name: str, vote: Vote, value: Value, shadowed: bool = False) -> bool:
        """False if the agent was not live when the ballot opened, and is not a shadow. Its last vote counts."""
        if name not in self.opened.eligible and not shadowed:
            return False
        if vote.stance == "for":
            value = self.opened.proposal
        self.casts[name] = Cast(vote, value if vote.stance in ("propose", "for") else None)
        return True

    def misfit(self, old: ActuatorSpec, spec: ActuatorSpec) -> str:
        """Why the ballot cannot stay open now that the learner has announced its actuator as `spec`: something other
        than choices and bounds has changed, or a value that was proposed does not fit any more. Empty if it can."""
        if spec.model_copy(update=_FREE) != old.model_copy(update=_FREE):
            return f"what a change of {spec.name} means is not what it was"
        wanted = [cast.value for cast in self.casts.values() if cast.vote.stance in ("propose", "for")]
        for value in (self.opened.proposal, *wanted):
            found = shaped(spec, value)
            fault = found if isinstance(found, Fault) else outside(spec, found)
            if fault is not None:
                return f"{show(value)} was proposed, {fault.why}"
        return ""

    def due(self, tick: int) -> bool:
        return tick >= self.opened.closes_at_tick

    def complete(self, state: State, newcomers: bool = True) -> bool:
        """Every eligible agent that still lives and counts has voted, or is done with the tick having seen this
        ballot; without `newcomers`, every one of them that is trusted here."""
        return all(
            name in self.casts or self.passed(state, name)
            for name in self.opened.eligible
            if newcomers or self.trusts(state, name)
        )

    def trusts(self, state: State, name: str) -> bool:
        """Whether the agent's word has weight here."""
        return state.trust.holds(name, self.opened.actuator)

    def binds(self, state: State, name: str) -> bool:
        """Whether the plan that the agent's proposal belongs to may tie this ballot to others: a newcomer's ties no
        ballot that somebody else opened."""
        return self.opened.opened_by == name or self.trusts(state, name)

    def passed(self, state: State, name: str) -> bool:
        """Whether nothing more of this agent is to be waited for."""
        agent = state.agents.get(name)
        if agent is None or not agent.live or state.shadowed(name):
            return True
        return agent.done_tick >= self.opened.tick and agent.seen >= self.opened.id


@dataclass(frozen=True, slots=True)
class Refusal:
    """`key` is what the first refusal is told apart by; `reason` names the value, the limit and the remedy."""

    key: tuple[str, str, str]
    reason: str


def proposed_value(name: str, vote: Vote, agent: Agent | None, specs: Mapping[str, ActuatorSpec]) -> Value | Refusal:
    """The proposal's value in the actuator's own form, or why it cannot stand.

    The name of an actuator that no one announced is not part of the key, or an agent could fill the log with refusals.
    """
    asked = f"agent {name} {request_text(vote.actuator, vote.value)}"
    if agent is None:
        return Refusal(
            (name, "", "not_joined"), f"{asked} without having joined: publish an AgentStatus of state joined first"
        )
    spec = specs.get(vote.actuator)
    if spec is None:
        known = clip(", ".join(sorted(specs)), 400) or "none"
        return Refusal((name, "", "unknown"), f"{asked}, which this run does not have: its actuators are {known}")
    if vote.actuator not in agent.moves:
        remedy = "announce it in the `moves` of its AgentStatus"
        return Refusal((name, spec.name, "moves"), f"{asked}, which it does not move: {remedy}")
    value = shaped(spec, vote.value)
    fault = value if isinstance(value, Fault) else outside(spec, value)
    if fault is not None:
        return Refusal((name, spec.name, fault.kind), f"{asked}, {fault.why}")
    assert not isinstance(value, Fault)
    return value


def closed_to(state: State, ballots: Mapping[str, Ballot], author: str, vote: Vote) -> Refusal | None:
    """Why this proposal opens no ballot, although it could stand on one."""
    rules = state.rules
    asked = f"agent {author} {request_text(vote.actuator, vote.value)}"
    if vote.confidence < rules.least_confidence:
        limit = f"rules.least_confidence is {rules.least_confidence:.3g}"
        why = f"at confidence {vote.confidence:.3g}, too little to open a ballot: {limit}"
        return Refusal((author, vote.actuator, "confidence"), f"{asked} {why}")
    opened = sum(ballot.opened.opened_by == author for ballot in ballots.values())
    if opened >= rules.open_ballots:
        why = f"and has {opened} ballots open, rules.open_ballots is {rules.open_ballots}: it may when one has closed"
        return Refusal((author, "", "open_ballots"), f"{asked} {why}")
    newcomer = not state.trust.holds(author, vote.actuator)
    if wait := state.rate_limits.waits(author, newcomer, vote, state.tick, rules):
        return Refusal((author, vote.actuator, "waits"), f"{asked} and may not open a ballot on it: {wait}")
    return None


def request_text(actuator: str, value: Value) -> str:
    name = clip(actuator, 120) or "an actuator without a name"
    return f"proposed {name}" if value is None else f"proposed {show(value)} for {name}"


def bounded_value(value: Value) -> Value:
    """A refused value as a decision may carry it: whatever an agent sent, cut to a size that fits."""
    if isinstance(value, str):
        return clip(value, 400)
    if isinstance(value, dict) and (len(value) > 32 or any(len(name) > 100 for name in value)):
        return None
    return value

"""Ballots: which agents may vote, their votes so far, and when voting closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import Fault, clip, outside, shaped, show
from oven_core.mesh.state import Agent, State
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Value, Vote

_FREE = {"value": None, "choices": (), "low": None, "high": None, "unit": ""}
"""Fields that a new announcement of an actuator may change without affecting the meaning of its open ballot."""


@dataclass(frozen=True, slots=True)
class Cast:
    """An agent's newest vote on a ballot. `value` is its own proposal, or the opening proposal if it voted `for`."""

    vote: Vote
    value: Value


@dataclass(slots=True)
class Ballot:
    """An open ballot. `casts` includes votes of shadow agents: the tally decides at the close whose votes count."""

    opened: BallotOpened
    casts: dict[str, Cast] = field(default_factory=dict)

    def take(self, name: str, vote: Vote, value: Value, shadowed: bool = False) -> bool:
        """Store an agent's newest vote. Return False if it was not live at the opening and is not a shadow."""
        if name not in self.opened.eligible and not shadowed:
            return False
        if vote.stance == "for":
            value = self.opened.proposal
        self.casts[name] = Cast(vote, value if vote.stance in ("propose", "for") else None)
        return True

    def misfit(self, old: ActuatorSpec, spec: ActuatorSpec) -> str:
        """Return why the ballot cannot stay open after the learner announced its actuator as `spec`: something other
        than choices and bounds has changed, or a proposed value no longer fits. Empty if it can."""
        if spec.model_copy(update=_FREE) != old.model_copy(update=_FREE):
            return f"what a change of {spec.name} means is not what it was"
        votes_for = [cast.value for cast in self.casts.values() if cast.vote.stance in ("propose", "for")]
        for value in (self.opened.proposal, *votes_for):
            fitted = shaped(spec, value)
            fault = fitted if isinstance(fitted, Fault) else outside(spec, fitted)
            if fault is not None:
                return f"{show(value)} was proposed, {fault.problem}"
        return ""

    def due(self, tick: int) -> bool:
        return tick >= self.opened.closes_at_tick

    def complete(self, state: State, newcomers: bool = True) -> bool:
        """Return whether every eligible agent that is live and counts has voted, or is done with the tick and has seen
        this ballot. Without `newcomers` only agents that are trusted here are awaited."""
        return all(
            name in self.casts or self.passed(state, name)
            for name in self.opened.eligible
            if newcomers or self.trusts(state, name)
        )

    def trusts(self, state: State, name: str) -> bool:
        """Return whether the agent's vote has weight on this ballot."""
        return state.trust.holds(name, self.opened.actuator)

    def binds(self, state: State, name: str) -> bool:
        """Return whether the agent's plan may tie this ballot to others. A newcomer's ties only its own ballots."""
        return self.opened.opened_by == name or self.trusts(state, name)

    def passed(self, state: State, name: str) -> bool:
        """Return whether the ballot no longer waits for this agent's vote."""
        agent = state.agents.get(name)
        if agent is None or not agent.live or state.shadowed(name):
            return True
        return agent.done_tick >= self.opened.tick and agent.seen >= self.opened.id


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused proposal. Only the first one with a `key` is logged; `reason` has value, limit and remedy."""

    key: tuple[str, str, str]
    reason: str


def proposed_value(name: str, vote: Vote, agent: Agent | None, specs: Mapping[str, ActuatorSpec]) -> Value | Refusal:
    """Return the proposal's value in the actuator's own form, or the refusal.

    The key of the refusal omits the name of an unknown actuator. Otherwise an agent could fill the log with
    refusals.
    """
    request = f"agent {name} {request_text(vote.actuator, vote.value)}"
    if agent is None:
        return Refusal(
            (name, "", "not_joined"), f"{request} without having joined: publish an AgentStatus of state joined first"
        )
    spec = specs.get(vote.actuator)
    if spec is None:
        names = clip(", ".join(sorted(specs)), 400) or "none"
        return Refusal((name, "", "unknown"), f"{request}, which this run does not have: its actuators are {names}")
    if vote.actuator not in agent.moves:
        remedy = "announce it in the `moves` of its AgentStatus"
        return Refusal((name, spec.name, "moves"), f"{request}, which it does not move: {remedy}")
    value = shaped(spec, vote.value)
    fault = value if isinstance(value, Fault) else outside(spec, value)
    if fault is not None:
        return Refusal((name, spec.name, fault.kind), f"{request}, {fault.problem}")
    assert not isinstance(value, Fault)
    return value


def closed_to(state: State, ballots: Mapping[str, Ballot], author: str, vote: Vote) -> Refusal | None:
    """Return the refusal of a valid proposal that may not open a ballot; None if it may."""
    rules = state.rules
    request = f"agent {author} {request_text(vote.actuator, vote.value)}"
    if vote.confidence < rules.least_confidence:
        limit = f"rules.least_confidence is {rules.least_confidence:.3g}"
        problem = f"at confidence {vote.confidence:.3g}, too little to open a ballot: {limit}"
        return Refusal((author, vote.actuator, "confidence"), f"{request} {problem}")
    opened = sum(ballot.opened.opened_by == author for ballot in ballots.values())
    if opened >= rules.open_ballots:
        problem = (
            f"and has {opened} ballots open, rules.open_ballots is {rules.open_ballots}: it may when one has closed"
        )
        return Refusal((author, "", "open_ballots"), f"{request} {problem}")
    newcomer = not state.trust.holds(author, vote.actuator)
    if wait := state.vote_limits.wait_reason(author, newcomer, vote, state.tick, rules):
        return Refusal((author, vote.actuator, "waits"), f"{request} and may not open a ballot on it: {wait}")
    return None


def request_text(actuator: str, value: Value) -> str:
    """Return a proposal in words, as in "proposed 0.5 for optimizer.lr_scale"."""
    name = clip(actuator, 120) or "an actuator without a name"
    return f"proposed {name}" if value is None else f"proposed {show(value)} for {name}"


def bounded_value(value: Value) -> Value:
    """Return a refused value, truncated to fit into a decision."""
    if isinstance(value, str):
        return clip(value, 400)
    if isinstance(value, dict) and (len(value) > 32 or any(len(name) > 100 for name in value)):
        return None
    return value

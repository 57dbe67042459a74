"""Ballots: which agents may vote, their votes so far, and when voting closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import Fault, clip, coerce_proposal, show
from oven_core.mesh.state import Agent, State
from oven_core.protocol.messages import ActuatorSpec, BallotOpened, Value, Vote

_CHANGEABLE_FIELDS = {"value": None, "choices": (), "low": None, "high": None, "unit": ""}
"""Fields that a new announcement of an actuator may change without affecting the meaning of its open ballot."""


@dataclass(frozen=True, slots=True)
class CastVote:
    """An agent's newest vote on a ballot. `value` is its own proposal, or the opening proposal if it voted `for`."""

    vote: Vote
    value: Value


@dataclass(slots=True)
class Ballot:
    """An open ballot. `votes` includes the votes of shadow agents, which the tally does not count."""

    opened: BallotOpened
    votes: dict[str, CastVote] = field(default_factory=dict)

    def add_vote(self, name: str, vote: Vote, value: Value, is_shadow: bool = False) -> bool:
        """Store an agent's newest vote. Return False if the agent may not vote, because it was not live at the opening.

        A shadow may always vote."""
        if name not in self.opened.eligible and not is_shadow:
            return False
        if vote.stance == "for":
            value = self.opened.proposal
        self.votes[name] = CastVote(vote, value if vote.stance in ("propose", "for") else None)
        return True

    def misfit_reason(self, old: ActuatorSpec, spec: ActuatorSpec) -> str:
        """Return why the ballot cannot stay open after the learner announced its actuator as `spec`, or an empty string
        if it can.

        The ballot must close if anything but choices, bounds or unit changed, or if a proposed value no longer fits."""
        if spec.model_copy(update=_CHANGEABLE_FIELDS) != old.model_copy(update=_CHANGEABLE_FIELDS):
            return f"changing {spec.name} now has a different meaning"
        supported_values = [cast.value for cast in self.votes.values() if cast.vote.stance in ("propose", "for")]
        for value in (self.opened.proposal, *supported_values):
            coerced = coerce_proposal(spec, value)
            if isinstance(coerced, Fault):
                return f"the proposed value is {show(value)}, {coerced.problem}"
        return ""

    def is_due(self, tick: int) -> bool:
        """Return whether voting has closed by this tick."""
        return tick >= self.opened.closes_at_tick

    def is_complete(self, state: State, await_newcomers: bool = True) -> bool:
        """Return whether no further vote of an eligible agent is expected.

        If `await_newcomers` is False, this ignores agents that are not trusted with this actuator."""
        return all(
            name in self.votes or not self.may_still_vote(state, name)
            for name in self.opened.eligible
            if await_newcomers or self.is_trusted(state, name)
        )

    def is_trusted(self, state: State, name: str) -> bool:
        """Return whether the agent's vote has weight on this ballot."""
        return state.is_trusted(name, self.opened.actuator)

    def may_link(self, state: State, name: str) -> bool:
        """Return whether a plan of this agent may link this ballot to others. Newcomers may link only their own."""
        return self.opened.opened_by == name or self.is_trusted(state, name)

    def may_still_vote(self, state: State, name: str) -> bool:
        """Return whether the agent may vote and has not yet finished the tick or not yet seen the ballot."""
        agent = state.agents.get(name)
        if agent is None or not agent.is_live or agent.cannot_fire or state.is_shadow(name):
            return False
        return agent.done_tick < self.opened.tick or agent.seen_ballot < self.opened.id


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused proposal. Only the first refusal with a given `key` is logged."""

    key: tuple[str, str, str]
    """The agent, the actuator and the kind of fault."""
    reason: str


def proposed_value(name: str, vote: Vote, agent: Agent | None, specs: Mapping[str, ActuatorSpec]) -> Value | Refusal:
    """Return the proposal's value in the actuator's form, or the refusal.

    The refusal's key does not contain the name of an unknown actuator. Otherwise an agent could fill the log with
    refusals by inventing names."""
    request = f"agent {name} {request_text(vote.actuator, vote.value)}"
    if agent is None:
        remedy = "first publish an AgentStatus with state joined"
        return Refusal((name, "", "not_joined"), f"{request} without having joined: {remedy}")
    spec = specs.get(vote.actuator)
    if spec is None:
        names = clip(", ".join(sorted(specs)), 400) or "none"
        return Refusal(
            (name, "", "unknown"), f"{request}, but this run has no such actuator: its actuators are {names}"
        )
    if vote.actuator not in agent.moves:
        remedy = "list the actuator in the `moves` of its AgentStatus"
        return Refusal((name, spec.name, "moves"), f"{request} without having announced it: {remedy}")
    value = coerce_proposal(spec, vote.value)
    if isinstance(value, Fault):
        return Refusal((name, spec.name, value.kind), f"{request}, {value.problem}")
    return value


def opening_refusal(state: State, ballots: Mapping[str, Ballot], author: str, vote: Vote) -> Refusal | None:
    """Return a refusal if a valid proposal may not open a ballot now, or None if it may."""
    rules = state.rules
    request = f"agent {author} {request_text(vote.actuator, vote.value)}"
    if vote.confidence < rules.least_confidence:
        limit = f"rules.least_confidence is {rules.least_confidence:.3g}"
        problem = f"at confidence {vote.confidence:.3g}, too low to open a ballot: {limit}"
        return Refusal((author, vote.actuator, "confidence"), f"{request} {problem}")
    open_count = sum(ballot.opened.opened_by == author for ballot in ballots.values())
    if open_count >= rules.open_ballots:
        limit = f"rules.open_ballots is {rules.open_ballots}"
        problem = f"but already has {open_count} open ballots, and {limit}: wait until one closes"
        return Refusal((author, "", "open_ballots"), f"{request} {problem}")
    limits = state.vote_limits
    if state.is_trusted(author, vote.actuator):
        key, wait = (author, vote.actuator, "waits"), limits.wait_reason(author, vote, state.tick, rules)
    else:
        other_ballots = (
            ballot.opened
            for ballot in ballots.values()
            if not ballot.is_trusted(state, ballot.opened.opened_by)
            and (ballot.opened.opened_by != author or ballot.opened.actuator not in vote.plan)
        )
        # The key names no agent. Otherwise many newcomers could fill the log with refusals.
        key, wait = (
            ("", "", "newcomers"),
            limits.request_turn(author, vote, state.tick, rules, next(other_ballots, None)),
        )
    return Refusal(key, f"{request} but may not open a ballot on it: {wait}") if wait else None


def request_text(actuator: str, value: Value) -> str:
    """Describe a proposal, for example "proposed 0.5 for optimizer.lr_scale"."""
    name = clip(actuator, 120) or "an actuator without a name"
    return f"proposed {name}" if value is None else f"proposed {show(value)} for {name}"


def bounded_value(value: Value) -> Value:
    """Truncate a refused value so that it fits into a decision. Return None for shares that do not fit."""
    if isinstance(value, str):
        return clip(value, 400)
    if isinstance(value, dict) and (len(value) > 32 or any(len(name) > 100 for name in value)):
        return None
    return value

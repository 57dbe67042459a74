"""Collect the votes, receipt and outcome of each decision from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import BallotOpened, Decision, Observation, Outcome, Receipt, RunStarted, Vote
from oven_core.protocol.operator_messages import OperatorCommand

MAX_LISTED_IDS = 4
"""Maximum number of ids listed in an error about an ambiguous prefix."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, its votes and its outcome."""

    decision: Decision
    seq: int
    """Sequence number of the decision's event."""
    time: datetime
    """Time at which that event was stored."""
    step: int
    """The optimizer step at which the decision was made."""
    opened: BallotOpened | None = None
    """None if there was no ballot, as for an operator's `set`, further parts of a plan, or a refusal."""
    votes: Mapping[str, Vote] = field(default_factory=dict)
    """Agent → its last vote on the ballot."""
    operator: str = ""
    """The operator who gave the command; empty if there was none."""
    approved_by: str = ""
    """The decision that applies this advice; empty if there is none."""
    receipt: Receipt | None = None
    outcome: Outcome | None = None
    announced: ActuatorAnnounced | None = None
    """The actuator's last announcement during the run, if there was one."""
    injected: tuple[PromptsInjected, ...] = ()
    """Prompts added between the decision's tick and its outcome. They also changed the training data."""
    later_receipt: Receipt | None = None
    """A later receipt for this actuator without a decision: the learner set run.best, or undid a change."""

    @property
    def proposer(self) -> str:
        """The operator if there is one, otherwise the agent that opened the ballot or the tally's first proposer."""
        if self.operator:
            return self.operator
        if self.opened is not None:
            return self.opened.opened_by
        return next((line.agent for line in self.decision.tally if line.stance == "propose"), "")


@dataclass
class Explanations:
    """Explanations of all decisions in a log. Pass the log's verified events to `feed` in order."""

    by_id: dict[str, Explanation] = field(default_factory=dict)
    """Explanations by decision id, without the added prompts. Use `get` to include them."""
    seq: int = 0
    """Sequence number of the newest event."""
    newest_time: datetime | None = None
    """Time of the newest event."""
    step: int = 0
    tick: int = 0
    changed_id: str = ""
    """Id of the decision that the last event changed; empty if it changed none."""
    _actuators: set[str] = field(default_factory=set)  # announced actuators; votes on others are ignored
    _open_ballots: dict[str, BallotOpened] = field(default_factory=dict)  # ballot id → its BallotOpened
    _votes: dict[str, dict[str, Vote]] = field(default_factory=dict)  # actuator → agent → its last vote
    _commands: dict[str, str] = field(default_factory=dict)  # command → operator
    _applied: dict[str, str] = field(default_factory=dict)  # actuator → the last applied decision
    _announced: dict[str, ActuatorAnnounced] = field(default_factory=dict)  # actuator → last announcement
    _injected: list[PromptsInjected] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self.seq, self.newest_time, self.changed_id = event.seq, event.time, ""
        match event.body:
            case Observation() as body:
                self.step, self.tick = body.step, max(self.tick, body.tick)
            case Vote() as vote if vote.actuator in self._actuators:
                self._votes.setdefault(vote.actuator, {})[event.author] = vote
            case BallotOpened() as opened:
                self._open_ballots[opened.id] = opened
            case Decision() as decision:
                self._add_decision(event, decision)
            case Receipt() as receipt:
                self._add_receipt(receipt)
            case Outcome() as outcome:
                self._amend(outcome.decision_id, outcome=outcome)
            case OperatorCommand() as command:
                self._commands.setdefault(command.id, event.author)
            case ActuatorAnnounced() as announced:
                self._announced[announced.actuator.name] = announced
                self._actuators.add(announced.actuator.name)
            case PromptsInjected() as injected:
                self._injected.append(injected)
            case RunStarted() as started:
                self.step = started.step
                self._actuators |= {spec.name for spec in started.actuators}

    def _add_decision(self, event: Event, decision: Decision) -> None:
        voters = {line.agent for line in decision.tally if line.stance != "silent"}
        opened = self._open_ballots.pop(decision.ballot, None)
        votes = self._votes.get(decision.actuator, {})
        # A decision without a ballot leaves the votes on another open ballot in place.
        if opened is not None or all(ballot.actuator != decision.actuator for ballot in self._open_ballots.values()):
            self._votes.pop(decision.actuator, None)
        self.by_id[decision.id] = Explanation(
            decision,
            event.seq,
            event.time,
            self.step,
            opened,
            {agent: vote for agent, vote in sorted(votes.items()) if agent in voters},
            self._commands.get(decision.command, ""),
            announced=self._announced.get(decision.actuator),
        )
        self.changed_id = decision.id
        if decision.approves in self.by_id:
            self.by_id[decision.approves] = replace(self.by_id[decision.approves], approved_by=decision.id)

    def _add_receipt(self, receipt: Receipt) -> None:
        if receipt.decision_id:
            self._amend(receipt.decision_id, receipt=receipt)
            if receipt.status == "applied":
                self._applied[receipt.actuator] = receipt.decision_id
        elif not receipt.command and (decision_id := self._applied.get(receipt.actuator)) is not None:
            self._amend(decision_id, later_receipt=receipt)

    def _amend(self, id_: str, **change: object) -> None:
        if id_ in self.by_id:
            self.by_id[id_] = replace(self.by_id[id_], **change)  # type: ignore[arg-type]
            self.changed_id = id_

    def get(self, id_: str) -> Explanation:
        """Return the explanation of a decision, with the prompts added until its outcome. Raises KeyError."""
        explanation = self.by_id[id_]
        decision, outcome = explanation.decision, explanation.outcome
        end = outcome.tick if outcome is not None else decision.tick + max(decision.horizon, 1)
        injected = tuple(prompts for prompts in self._injected if decision.tick <= prompts.tick <= end)
        return replace(explanation, injected=injected)

    def find(self, name: str) -> Explanation:
        """Find a decision by its id or ballot, its actuator, or the beginning of its id. For an actuator, return the
        newest decision that passed, or the newest one if none passed. Raises UnknownNameError. Raises ConfigError if
        several ids begin with `name` or if the ballot is still open."""
        decisions = [explanation.decision for explanation in self.by_id.values()]
        same_id = [decision for decision in decisions if name in (decision.id, decision.ballot)]
        same_actuator = [decision for decision in decisions if decision.actuator == name]
        passed = [decision for decision in same_actuator if decision.verdict != "rejected"]
        for matches in (same_id, passed, same_actuator):
            if matches:
                return self.get(matches[-1].id)
        if (opened := self._open_ballots.get(name)) is not None:
            raise ConfigError(self._open_ballot_error(opened))
        ids = matching_ids(name, self.by_id) or matching_ids(name, (decision.ballot for decision in decisions))
        if len(ids) > 1:
            listed_ids = ", ".join(ids[:MAX_LISTED_IDS]) + (", …" if len(ids) > MAX_LISTED_IDS else "")
            raise ConfigError(f"{len(ids)} ids begin with {name[:40]!r}: {listed_ids}; enter more of the id")
        if not ids:
            raise UnknownNameError("decision", name, {decision.actuator for decision in decisions})
        return self.find(ids[0])

    def _open_ballot_error(self, opened: BallotOpened) -> str:
        votes = self._votes.get(opened.actuator, {})
        stances = [f"{agent} {votes[agent].stance}" for agent in opened.eligible if agent in votes]
        return (
            f"the ballot {opened.id} on {opened.actuator} is still open, so there is nothing to explain yet; it closes "
            f"at tick {opened.closes_at_tick}; votes so far: {', '.join(stances) or 'none'}"
        )


def matching_ids(prefix: str, ids: Iterable[str]) -> list[str]:
    """Return the ids that start with this prefix, with or without leading zeros. If the prefix equals the part before
    the hyphen of exactly one id, return only that id."""
    if not prefix:
        return []
    unique_ids = dict.fromkeys(ids)
    matches = [id_ for id_ in unique_ids if id_.startswith(prefix) or short_id(id_).startswith(prefix)]
    exact = [id_ for id_ in matches if short_id(id_).partition("-")[0] == prefix]
    return exact if len(exact) == 1 else matches


def short_id(id_: str) -> str:
    """Return an id without leading zeros, as users type it: "412-00" for "000000000412-00"."""
    return id_.lstrip("0") or id_

"""One decision with all that the log says of it: its votes, its receipt and its outcome. A pure fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from oven_core.errors import ConfigError
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    BallotOpened,
    Decision,
    Observation,
    Outcome,
    Receipt,
    RunStarted,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand

SHOWN = 4
"""Ids that an ambiguous beginning of one names."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and its outcome."""

    decision: Decision
    seq: int
    """Of the decision's event, as is `time`."""
    time: datetime
    step: int
    """The optimizer step at which it was decided."""
    opened: BallotOpened | None = None
    """None where no ballot was open: an operator's `set`, a plan's other parts, a refusal."""
    votes: Mapping[str, Vote] = field(default_factory=dict)
    """Agent → its last vote on the ballot."""
    operator: str = ""
    """Who gave the command behind it; empty where none did."""
    approved_by: str = ""
    """The decision that carries this advice out; empty while none does."""
    receipt: Receipt | None = None
    outcome: Outcome | None = None
    announced: ActuatorAnnounced | None = None
    """Its actuator, where the learner had announced it anew before."""
    injected: tuple[PromptsInjected, ...] = ()
    """Prompts that were added from its tick on until it was judged: a change of the data beside its own."""
    later: Receipt | None = None
    """What the learner said of the actuator by itself after the decision was carried out: which weights the run ended
    with (run.best), or that a loop undid its change."""

    @property
    def proposer(self) -> str:
        """The operator behind it, else who opened the ballot, else the first in the tally who proposed."""
        if self.operator:
            return self.operator
        if self.opened is not None:
            return self.opened.opened_by
        return next((line.agent for line in self.decision.tally if line.stance == "propose"), "")


@dataclass
class Explanations:
    """Feed it the log's events in order, judged."""

    found: dict[str, Explanation] = field(default_factory=dict)
    """By the decision's id, as far as they are filled in while the log is read: `whole` adds the rest."""
    newest: datetime | None = None
    """The time of the newest event."""
    step: int = 0
    tick: int = 0
    changed: str = ""
    """The id of the decision that the last event was about; empty where it was about none."""
    _actuators: set[str] = field(default_factory=set)  # those that were announced: votes may name any
    _open: dict[str, BallotOpened] = field(default_factory=dict)
    _votes: dict[str, dict[str, Vote]] = field(default_factory=dict)  # actuator → agent → its last vote
    _commands: dict[str, str] = field(default_factory=dict)  # command → who gave it
    _carried_out: dict[str, str] = field(default_factory=dict)  # actuator → the decision that was applied last
    _announced: dict[str, ActuatorAnnounced] = field(default_factory=dict)  # actuator → its newest
    _injected: list[PromptsInjected] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        """Take the next event in."""
        self.newest, self.changed = event.time, ""
        match event.body:
            case Observation() as body:
                self.step, self.tick = body.step, max(self.tick, body.tick)
            case Vote() as vote if vote.actuator in self._actuators:
                self._votes.setdefault(vote.actuator, {})[event.author] = vote
            case BallotOpened() as opened:
                self._open[opened.id] = opened
            case Decision() as decision:
                self._decided(event, decision)
            case Receipt() as receipt:
                self._receipt(receipt)
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
            case _:
                pass

    def _decided(self, event: Event, decision: Decision) -> None:
        said = {line.agent for line in decision.tally if line.stance != "silent"}
        opened = self._open.pop(decision.ballot, None)
        votes = self._votes.get(decision.actuator, {})
        if opened is not None or all(ballot.actuator != decision.actuator for ballot in self._open.values()):
            self._votes.pop(decision.actuator, None)
        self.found[decision.id] = Explanation(
            decision,
            event.seq,
            event.time,
            self.step,
            opened,
            {agent: vote for agent, vote in sorted(votes.items()) if agent in said},
            self._commands.get(decision.command, ""),
            announced=self._announced.get(decision.actuator),
        )
        self.changed = decision.id
        if decision.approves in self.found:
            self.found[decision.approves] = replace(self.found[decision.approves], approved_by=decision.id)

    def _receipt(self, receipt: Receipt) -> None:
        if receipt.decision_id:
            self._amend(receipt.decision_id, receipt=receipt)
            if receipt.status == "applied":
                self._carried_out[receipt.actuator] = receipt.decision_id
        elif not receipt.command and (made := self._carried_out.get(receipt.actuator)) is not None:
            self._amend(made, later=receipt)

    def _amend(self, id_: str, **change: object) -> None:
        if id_ in self.found:
            self.found[id_] = replace(self.found[id_], **change)  # type: ignore[arg-type]
            self.changed = id_

    def whole(self, id_: str) -> Explanation:
        """The decision with this id, with the prompts that were added meanwhile. Raises KeyError."""
        found = self.found[id_]
        judged = found.decision.tick + max(found.decision.horizon, 1)
        judged = found.outcome.tick if found.outcome is not None else judged
        injected = tuple(one for one in self._injected if found.decision.tick <= one.tick <= judged)
        return replace(found, injected=injected)

    def find(self, name: str) -> Explanation | None:
        """Of the decision with this id, or on this ballot; else the newest that passed on this actuator, else the
        newest on it; else the only one whose id begins so. None where there is none. Raises ConfigError where several
        ids begin so, and for a ballot that is still open, which says how it stands."""
        decisions = [one.decision for one in self.found.values()]
        named = [decision for decision in decisions if name in (decision.id, decision.ballot)]
        of = [decision for decision in decisions if decision.actuator == name]
        passed = [decision for decision in of if decision.verdict != "rejected"]
        for choice in (named, passed, of):
            if choice:
                return self.whole(choice[-1].id)
        if (opened := self._open.get(name)) is not None:
            raise ConfigError(self._undecided(opened))
        begun = beginning(name, self.found) or beginning(name, (one.ballot for one in decisions))
        if len(begun) > 1:
            shown = ", ".join(begun[:SHOWN]) + (", …" if len(begun) > SHOWN else "")
            raise ConfigError(f"{len(begun)} ids begin with {name[:40]!r}: {shown}; write more of the one you mean")
        return self.find(begun[0]) if begun else None

    def _undecided(self, opened: BallotOpened) -> str:
        votes = self._votes.get(opened.actuator, {})
        said = [f"{agent} {votes[agent].stance}" for agent in opened.eligible if agent in votes]
        stands = f"it closes at tick {opened.closes_at_tick}, so far: {', '.join(said) or 'no vote'}"
        return (
            f"the ballot {opened.id} on {opened.actuator} is still open, and there is nothing to explain yet; {stands}"
        )


def beginning(name: str, ids: Iterable[str]) -> list[str]:
    """The ids that begin so, with or without their leading zeros; of those whose number is just this one alone."""
    ids = list(dict.fromkeys(ids))
    begun = [id_ for id_ in ids if name and (id_.startswith(name) or short(id_).startswith(name))]
    exact = [id_ for id_ in begun if short(id_).partition("-")[0] == name]
    return exact if len(exact) == 1 else begun


def short(id_: str) -> str:
    """An id without its leading zeros, as it may be typed: "000000000412-00" is "412-00"."""
    return id_.lstrip("0") or id_

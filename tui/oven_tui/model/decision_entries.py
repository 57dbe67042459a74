"""The entries of the decision list (decisions, open ballots and notes), and their filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic_core import to_json

from oven_core.protocol.messages import BallotOpened, Decision, Outcome, Receipt, Vote
from oven_runs.log.run_summary import verdict_text
from oven_tui.model.word_filter import word_filter

Fate: TypeAlias = Literal["pending", "applied", "noop", "failed", "rejected", "would set", "advised", "approved"]
"""State of a decision. `noop` means that the knob already had the value, `would set` that the mesh only observes."""


@dataclass(frozen=True, slots=True)
class DecisionEntry:
    """A decision with its votes. Its receipt and outcome are added when they arrive."""

    seq: int
    step: int
    decision: Decision
    opened: BallotOpened | None
    votes: Mapping[str, Vote]
    receipt: Receipt | None = None
    outcome: Outcome | None = None
    approved: bool = False
    """Whether an operator approved this advice. The approval is a separate decision by the operator."""

    @property
    def fate(self) -> Fate:
        if self.decision.verdict == "advised":
            return "approved" if self.approved else "advised"
        verdict = verdict_text(self.decision.verdict, self.decision.reason)
        if verdict == "rejected" or verdict == "would set":
            return verdict
        if self.receipt is None:
            return "pending"
        return self.receipt.status if self.receipt.status in ("applied", "noop") else "failed"

    @property
    def proposer(self) -> str:
        """Return the agent that opened the ballot, or otherwise the first proposer in the tally."""
        if self.opened is not None:
            return self.opened.opened_by
        return next((line.agent for line in self.decision.tally if line.stance == "propose"), "")


@dataclass(frozen=True, slots=True)
class OpenBallot:
    """An open ballot and its votes so far."""

    seq: int
    step: int
    opened: BallotOpened
    votes: Mapping[str, Vote]


@dataclass(frozen=True, slots=True)
class Note:
    """A note about an operator's command, an agent's notice, or the learner's start, end or announcement."""

    seq: int
    step: int
    author: str
    text: str
    command: str = ""
    """The id of the operator's command (oven_tui.model.command_progress)."""


Entry: TypeAlias = DecisionEntry | OpenBallot | Note


def label(entry: Entry) -> str:
    """Return the entry's name for messages to the user."""
    match entry:
        case DecisionEntry():
            return f"decision {entry.decision.id}"
        case OpenBallot():
            return f"ballot {entry.opened.id}"
        case Note():
            return f"event {entry.seq}"


def tick_of(entry: Entry) -> int | None:
    """Return the tick at which a decision took effect or a ballot opened, or None for a note."""
    match entry:
        case DecisionEntry():
            return entry.receipt.tick if entry.receipt is not None else entry.decision.tick
        case OpenBallot():
            return entry.opened.tick
        case Note():
            return None


def as_json(entry: Entry, command: Mapping[str, Any] | None = None) -> str:
    """Return the entry with its messages as JSON. `command` is the result of the operator's command in a note."""
    row: dict[str, Any] = {"event": entry.seq, "step": entry.step}
    match entry:
        case DecisionEntry():
            row |= {"fate": entry.fate, "decision": entry.decision, "ballot": entry.opened, "receipt": entry.receipt}
            row |= {"outcome": entry.outcome, "votes": entry.votes}
        case OpenBallot():
            row |= {"ballot": entry.opened, "votes": entry.votes}
        case Note():
            row |= {"author": entry.author, "text": entry.text, **({"result": command} if command else {})}
    return to_json(row).decode()


def matching(words: str) -> Callable[[Entry], bool]:
    """Return a filter with the fields `agent:`, `actuator:` and `step:`."""
    return word_filter(words, _text, {"agent": _agents, "actuator": _actuator}, lambda entry: entry.step)


def _agents(entry: Entry) -> str:
    match entry:
        case DecisionEntry():
            return " ".join(line.agent for line in entry.decision.tally if line.stance != "silent")
        case OpenBallot():
            return " ".join((entry.opened.opened_by, *entry.votes))
        case Note():
            return entry.author


def _actuator(entry: Entry) -> str:
    if isinstance(entry, Note):
        return ""
    return entry.decision.actuator if isinstance(entry, DecisionEntry) else entry.opened.actuator


def _text(entry: Entry) -> str:
    match entry:
        case DecisionEntry():
            return " ".join((entry.decision.actuator, entry.fate, _agents(entry), entry.decision.reason))
        case OpenBallot():
            return f"{entry.opened.actuator} open {_agents(entry)}"
        case Note():
            return f"{entry.author} {entry.text}"

"""Participants next to the proposing agents: replies to ballots with their latency, the graph, the committee."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from oven_core.protocol.events import Event
from oven_core.protocol.messages import BallotOpened, Decision, Vote
from oven_runs.log.cited_paths import parse_path
from oven_runs.log.committee_view import CommitteeView

GRAPH: Final = "graph"
"""The name under which the knowledge graph votes."""
MAX_OPEN_BALLOTS: Final = 64
MAX_AGENTS: Final = 64
_JUDGED_BY_GRAPH: Final = "kg:"
"""Prefix of the evidence with the hash of the graph that judged a vote."""


@dataclass(slots=True)
class Replies:
    """An agent's replies to other agents' ballots."""

    count: int = 0
    latency_s: float = 0.0
    """Seconds between the newest such ballot and the reply to it, by the log's times."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A member of the reward committee: a rule or a judge."""

    member: str
    weight: float | None
    score: float | None
    """Its mean score in the newest step that the committee scored."""
    problem: str
    """Why it does not score, for example "quarantined"; empty if it does."""


@dataclass
class Participants:
    """Pass the log's events to `feed` in order. Memory is bounded."""

    replies: dict[str, Replies] = field(default_factory=dict)
    graph_requests: int = 0
    """Number of ballots that were put to the graph, or of votes that it judged for their agents before."""
    graph_path: str = ""
    """The newest path through the graph that a vote cites: symptom ← cause ← remedy."""
    committee: CommitteeView = field(default_factory=CommitteeView)
    _open_ballots: dict[str, tuple[datetime, set[str]]] = field(default_factory=dict)
    """Ballot → when it opened, and the agents that replied."""

    def feed(self, event: Event) -> None:
        """Add the next event."""
        self.committee.feed(event)
        match event.body:
            case BallotOpened() as body:
                if len(self._open_ballots) == MAX_OPEN_BALLOTS:  # a learner that restarts leaves ballots undecided
                    del self._open_ballots[next(iter(self._open_ballots))]
                self._open_ballots[body.id] = (event.time, {body.opened_by})
                self.graph_requests += GRAPH in body.eligible and body.opened_by != GRAPH
            case Vote() as body:
                self._add_vote(event, body)
            case Decision() as body:
                self._open_ballots.pop(body.ballot, None)

    def _add_vote(self, event: Event, vote: Vote) -> None:
        self.graph_requests += any(text.startswith(_JUDGED_BY_GRAPH) for text in vote.evidence)
        paths = filter(None, map(parse_path, vote.evidence))
        self.graph_path = next((" ← ".join(path.nodes) for path in paths if path.backwards), self.graph_path)
        opened_at, replied = self._open_ballots.get(vote.ballot, (event.time, {event.author}))
        if event.author in replied or (len(self.replies) >= MAX_AGENTS and event.author not in self.replies):
            return
        replied.add(event.author)
        replies = self.replies.setdefault(event.author, Replies())
        replies.count += 1
        replies.latency_s = max(0.0, (event.time - opened_at).total_seconds())

    def seats(self) -> list[Seat]:
        """Return the members of the committee. Those that do not score are first."""
        judges = {view.member: view for view in self.committee.member_views({})}
        weights, metrics = self.committee.weights, self.committee.metrics
        seats = []
        for member in dict.fromkeys([*weights, *judges]):
            problem = judges[member].state if member in judges else ""
            if problem == "scoring":
                problem = ""
            seats.append(Seat(member, weights.get(member), metrics.get(f"rewards/{member}/mean"), problem))
        return sorted(seats, key=lambda seat: not seat.problem)

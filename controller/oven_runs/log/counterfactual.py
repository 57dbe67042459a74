"""Open-loop counterfactuals: a changed mesh over a recorded run, and where it parts from the log.

Open loop: the metrics are those of the recording whatever is decided, so only the first divergence is sure; what comes
after it rests on a run that would not have gone that way. Receipts count for decisions that this mesh made as well, and
for nothing else. What the learner announces, at a start or later, comes with the recording's values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from oven_core.mesh.actuator_values import show
from oven_core.mesh.outputs import OUTPUTS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LogMessage,
    Receipt,
    RunStarted,
    Value,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules


class _Mesh(Mesh):
    """Ids come from the recording's sequences, also where something that was added caused them: so an id is the logged
    one wherever the same event decides."""

    at = made = 0

    def _next_id(self) -> str:
        self.made += 1
        return f"{self.at:012d}-{self.made - 1:02d}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A decision on which log and mesh part. One of the two is None where only the other decided at that tick."""

    tick: int
    actuator: str
    seq: int | None
    subject: str
    logged: Decision | None
    computed: Decision | None


def spoken(decision: Decision | None) -> str:
    """A decision in words."""
    if decision is None:
        return "nothing was decided"
    what = "" if decision.value is None else f" {show(decision.value)}"
    return f"{decision.verdict}{what} at tick {decision.tick}: {decision.reason}"


@dataclass
class Verdicts:
    """Decisions on one actuator by verdict."""

    logged: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)


class OpenLoop:
    """Feed it the recorded events in order, and between them whatever else was to be said."""

    def __init__(self, run: str, rules: Callable[[Rules], Rules] = lambda rules: rules) -> None:
        """`rules` makes those to decide by from those of the recording."""
        self.logged: list[tuple[int, Decision]] = []  # with its sequence
        self.computed: list[Decision] = []
        self.ignored_receipts = 0
        self._mesh = _Mesh(run)
        self._rules = rules
        self._taken = 0
        self._ids: dict[str, str] = {}  # a logged ballot → the computed one that stands for it
        self._decided: dict[str, Decision] = {}  # what was logged, by id

    @property
    def started(self) -> bool:
        return self._mesh.state.started

    @property
    def tick(self) -> int:
        return self._mesh.state.tick

    def take(self, event: Event) -> tuple[LogMessage | None, list[Output]]:
        """What this mesh heard of a recorded event (nothing of the log's own outputs, nor of receipts for decisions
        that it did not make), and what it made of it."""
        self._mesh.at, self._mesh.made = event.seq, 0
        if isinstance(event.body, Malformed):
            return None, self._step(event)
        if names.kind(event.subject) in OUTPUTS:
            self._note(event.seq, event.body)
            return None, []
        body = self._heard(event.body)
        return body, [] if body is None else self._step(replace(event, body=body))

    def add(self, subject: str, body: LogMessage, beside: Event) -> list[Output]:
        """Something that the recording does not hold, right after the event that was taken last."""
        return self._step(Event(beside.seq, subject, body.wire(), beside.time, body))

    def ballot(self, actuator: str) -> str:
        """The id of the ballot that is open on it, if one is."""
        found = self._mesh.ballots.get(actuator)
        return found.opened.id if found else ""

    def value(self, actuator: str) -> Value:
        """What this mesh takes the actuator's value to be."""
        return self._mesh.state.effective.get(actuator)

    def divergences(self) -> list[Divergence]:
        """In ticks. Decisions are told apart by tick, actuator and place among those; what would be carried out is what
        counts, not the wording of a reason. At the end of a log that continues, one that was computed is not in it yet.
        """
        logged, computed = _by_place(decision for _, decision in self.logged), _by_place(self.computed)
        seqs = {decision.id: seq for seq, decision in self.logged}
        found = []
        for place in sorted(logged.keys() | computed.keys()):
            was, now = logged.get(place), computed.get(place)
            if was is None and place[0] == self.tick and not self._mesh.state.ended:
                continue
            if was is None or now is None or _deed(was) != _deed(now):
                id_ = was.id if was is not None else now.id if now is not None else ""
                subject = self._mesh.subjects.decision(id_)
                found.append(Divergence(place[0], place[1], seqs[id_] if was else None, subject, was, now))
        return found

    def verdicts(self) -> dict[str, Verdicts]:
        """By actuator."""
        found: dict[str, Verdicts] = {}
        for _, decision in self.logged:
            found.setdefault(decision.actuator, Verdicts()).logged[decision.verdict] += 1
        for decision in self.computed:
            found.setdefault(decision.actuator, Verdicts()).computed[decision.verdict] += 1
        return dict(sorted(found.items()))

    def _step(self, event: Event) -> list[Output]:
        self._taken += 1
        outputs = self._mesh.step(replace(event, seq=self._taken))
        self._mesh.pending.clear()  # nothing is published
        self.computed += [output.message for output in outputs if isinstance(output.message, Decision)]
        return outputs

    def _note(self, seq: int, body: LogMessage) -> None:
        """Remember what the recording's mesh said, and which computed ballot is the same."""
        if isinstance(body, Decision):
            self.logged.append((seq, body))
            self._decided[body.id] = body
        elif isinstance(body, BallotOpened):
            ballot = self._mesh.ballots.get(body.actuator)
            if ballot is not None:
                mine = ballot.opened
                if (mine.opened_by, mine.proposal) == (body.opened_by, body.proposal):
                    self._ids[body.id] = mine.id

    def _heard(self, body: LogMessage) -> LogMessage | None:
        """The message with this mesh's ids in place of the log's."""
        if isinstance(body, RunStarted):
            return body.model_copy(update={"rules": self._rules(body.rules)})
        if isinstance(body, Receipt) and body.decision_id:
            mine = self._made(body.decision_id)
            if mine is None:
                self.ignored_receipts += 1
                return None
            return body.model_copy(update={"decision_id": mine.id})
        if isinstance(body, Vote):
            return body.model_copy(update={"ballot": self._ids.get(body.ballot, body.ballot)})
        if isinstance(body, AgentStatus):
            return body.model_copy(update={"seen": self._ids.get(body.seen, body.seen)})
        if isinstance(body, OperatorCommand):
            mine = self._made(body.subject_id)
            return body.model_copy(
                update={"subject_id": mine.id if mine else self._ids.get(body.subject_id, body.subject_id)}
            )
        return body

    def _made(self, logged: str) -> Decision | None:
        """The decision of this mesh that does the same as a logged one."""
        theirs = self._decided.get(logged)
        if theirs is None:
            return None
        lately = takewhile(lambda mine: mine.tick >= theirs.tick, reversed(self.computed))
        return next((mine for mine in lately if _same(mine, theirs)), None)


def _same(mine: Decision, theirs: Decision) -> bool:
    return mine.tick == theirs.tick and mine.actuator == theirs.actuator and _deed(mine) == _deed(theirs)


def _deed(decision: Decision) -> tuple[object, ...]:
    if decision.verdict == "rejected":
        return (decision.verdict,)
    return (decision.verdict, decision.value, decision.apply_at_tick, decision.expires_at_tick)


def _by_place(decisions: Iterable[Decision]) -> dict[tuple[int, str, int], Decision]:
    found: dict[tuple[int, str, int], Decision] = {}
    times: Counter[tuple[int, str]] = Counter()
    for decision in decisions:
        place = (decision.tick, decision.actuator)
        found[(*place, times[place])] = decision
        times[place] += 1
    return found

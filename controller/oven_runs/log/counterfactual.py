"""Open-loop counterfactuals: run a changed mesh over a recorded run, and find where its decisions diverge.

The metrics come from the recording, no matter what this mesh decides. So only the first divergence is certain. After
it, the recording belongs to a different run. Receipts count only if this mesh made the same decision. Announcements of
the learner keep the recorded values.
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
    """A mesh that builds ids from the recording's sequences, so that the same event gets the logged id."""

    current_seq = ids_issued = 0

    def _next_id(self) -> str:
        self.ids_issued += 1
        return f"{self.current_seq:012d}-{self.ids_issued - 1:02d}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A decision that differs between log and mesh. If only one of them decided at that tick, the other is None."""

    tick: int
    actuator: str
    seq: int | None
    subject: str
    logged: Decision | None
    computed: Decision | None


def decision_text(decision: Decision | None) -> str:
    """Describe a decision for people."""
    if decision is None:
        return "nothing was decided"
    what = "" if decision.value is None else f" {show(decision.value)}"
    return f"{decision.verdict}{what} at tick {decision.tick}: {decision.reason}"


@dataclass
class Verdicts:
    """The number of decisions on one actuator, by verdict."""

    logged: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)


class OpenLoop:
    """Runs a changed mesh over the recorded events, passed in order with additional messages between them."""

    def __init__(self, run: str, rules: Callable[[Rules], Rules] = lambda rules: rules) -> None:
        """`rules` changes the recording's rules."""
        self.logged: list[tuple[int, Decision]] = []  # with their sequences
        self.computed: list[Decision] = []
        self.ignored_receipts = 0
        self._mesh = _Mesh(run)
        self._rules = rules
        self._steps = 0
        self._ids: dict[str, str] = {}  # id of a logged ballot → id of the same computed ballot
        self._decided: dict[str, Decision] = {}  # logged decisions by id

    @property
    def started(self) -> bool:
        return self._mesh.state.started

    @property
    def tick(self) -> int:
        return self._mesh.state.tick

    def feed(self, event: Event) -> tuple[LogMessage | None, list[Output]]:
        """Add the next recorded event. Returns the message that this mesh received, if any, and its outputs.

        It does not receive the outputs of the recording's mesh, nor receipts for decisions that it did not make.
        """
        self._mesh.current_seq, self._mesh.ids_issued = event.seq, 0
        if isinstance(event.body, Malformed):
            return None, self._step(event)
        if names.kind(event.subject) in OUTPUTS:
            self._note(event.seq, event.body)
            return None, []
        body = self._translated(event.body)
        return body, [] if body is None else self._step(replace(event, body=body))

    def add(self, subject: str, body: LogMessage, after: Event) -> list[Output]:
        """Add a message that the recording does not have, right after its last event `after`."""
        return self._step(Event(after.seq, subject, body.wire(), after.time, body))

    def ballot(self, actuator: str) -> str:
        """Return the id of the open ballot on an actuator; empty if there is none."""
        ballot = self._mesh.ballots.get(actuator)
        return ballot.opened.id if ballot else ""

    def value(self, actuator: str) -> Value:
        """Return the actuator's value, as this mesh knows it."""
        return self._mesh.state.effective.get(actuator)

    def divergences(self) -> list[Divergence]:
        """Return the decisions that differ, in the order of their ticks.

        Decisions are matched by tick, actuator and their order among those. Differences in the wording of a reason do
        not count. At the end of an unfinished log, the last tick's decisions may not be logged yet.
        """
        logged, computed = _by_key(decision for _, decision in self.logged), _by_key(self.computed)
        seqs = {decision.id: seq for seq, decision in self.logged}
        divergences = []
        for key in sorted(logged.keys() | computed.keys()):
            was, now = logged.get(key), computed.get(key)
            tick, actuator, _ = key
            if was is None and tick == self.tick and not self._mesh.state.ended:
                continue
            if was is None or now is None or _effect(was) != _effect(now):
                id_ = was.id if was is not None else now.id if now is not None else ""
                subject = self._mesh.subjects.decision(id_)
                divergences.append(Divergence(tick, actuator, seqs[id_] if was else None, subject, was, now))
        return divergences

    def verdicts(self) -> dict[str, Verdicts]:
        """Return the counts of verdicts by actuator."""
        counts: dict[str, Verdicts] = {}
        for _, decision in self.logged:
            counts.setdefault(decision.actuator, Verdicts()).logged[decision.verdict] += 1
        for decision in self.computed:
            counts.setdefault(decision.actuator, Verdicts()).computed[decision.verdict] += 1
        return dict(sorted(counts.items()))

    def _step(self, event: Event) -> list[Output]:
        self._steps += 1
        outputs = self._mesh.step(replace(event, seq=self._steps))
        self._mesh.pending.clear()  # nothing is published
        self.computed += [output.message for output in outputs if isinstance(output.message, Decision)]
        return outputs

    def _note(self, seq: int, body: LogMessage) -> None:
        """Record an output of the recording's mesh, and match its ballot with the computed one."""
        if isinstance(body, Decision):
            self.logged.append((seq, body))
            self._decided[body.id] = body
        elif isinstance(body, BallotOpened):
            ballot = self._mesh.ballots.get(body.actuator)
            if ballot is not None:
                own = ballot.opened
                if (own.opened_by, own.proposal) == (body.opened_by, body.proposal):
                    self._ids[body.id] = own.id

    def _translated(self, body: LogMessage) -> LogMessage | None:
        """Return the message with this mesh's ids; None for a receipt of a decision that it did not make."""
        if isinstance(body, RunStarted):
            return body.model_copy(update={"rules": self._rules(body.rules)})
        if isinstance(body, Receipt) and body.decision_id:
            own = self._own_decision(body.decision_id)
            if own is None:
                self.ignored_receipts += 1
                return None
            return body.model_copy(update={"decision_id": own.id})
        if isinstance(body, Vote):
            return body.model_copy(update={"ballot": self._ids.get(body.ballot, body.ballot)})
        if isinstance(body, AgentStatus):
            return body.model_copy(update={"seen": self._ids.get(body.seen, body.seen)})
        if isinstance(body, OperatorCommand):
            own = self._own_decision(body.subject_id)
            return body.model_copy(
                update={"subject_id": own.id if own else self._ids.get(body.subject_id, body.subject_id)}
            )
        return body

    def _own_decision(self, logged_id: str) -> Decision | None:
        """Return this mesh's decision with the same effect as a logged one."""
        logged = self._decided.get(logged_id)
        if logged is None:
            return None
        candidates = takewhile(lambda own: own.tick >= logged.tick, reversed(self.computed))
        return next((own for own in candidates if _same(own, logged)), None)


def _same(own: Decision, logged: Decision) -> bool:
    return own.tick == logged.tick and own.actuator == logged.actuator and _effect(own) == _effect(logged)


def _effect(decision: Decision) -> tuple[object, ...]:
    if decision.verdict == "rejected":
        return (decision.verdict,)
    return (decision.verdict, decision.value, decision.apply_at_tick, decision.expires_at_tick)


def _by_key(decisions: Iterable[Decision]) -> dict[tuple[int, str, int], Decision]:
    """Return the decisions by tick, actuator and index among decisions with the same two."""
    by_key: dict[tuple[int, str, int], Decision] = {}
    counts: Counter[tuple[int, str]] = Counter()
    for decision in decisions:
        key = (decision.tick, decision.actuator)
        by_key[(*key, counts[key])] = decision
        counts[key] += 1
    return by_key

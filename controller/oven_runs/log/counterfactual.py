"""Run a mesh with changed rules over a recorded run, and find where its decisions diverge (open-loop counterfactuals).

The metrics come from the recording, no matter what the changed mesh decides. So only the first divergence is certain:
after it, the recording belongs to a different run. Receipts count only if the changed mesh made the same decision. The
learner's announcements keep the recorded values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from oven_core.mesh.actuator_values import show
from oven_core.mesh.outputs import OUTPUT_KINDS, Output
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


class _RecordedIdMesh(Mesh):
    """A mesh that builds ids from recorded sequence numbers, so that an unchanged decision gets the logged id."""

    current_seq = ids_issued = 0

    def _next_id(self) -> str:
        self.ids_issued += 1
        return f"{self.current_seq:012d}-{self.ids_issued - 1:02d}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A decision that differs between log and mesh. `logged` or `computed` is None if only the other exists."""

    tick: int
    actuator: str
    seq: int | None  # of the logged decision
    subject: str
    logged: Decision | None
    computed: Decision | None


def decision_text(decision: Decision | None) -> str:
    """Describe a decision in words."""
    if decision is None:
        return "no decision"
    value = "" if decision.value is None else f" {show(decision.value)}"
    return f"{decision.verdict}{value} at tick {decision.tick}: {decision.reason}"


@dataclass
class VerdictCounts:
    """The number of decisions on one actuator, by verdict."""

    logged: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)


class ChangedMesh:
    """A mesh that runs over recorded events. Pass the events to `feed` in order, and additional messages to `add`."""

    def __init__(self, run: str, rules: Callable[[Rules], Rules] = lambda rules: rules) -> None:
        """`rules` maps the recorded rules to the changed rules."""
        self.logged: list[tuple[int, Decision]] = []  # sequence number and decision
        self.computed: list[Decision] = []
        self.ignored_receipts = 0
        self._mesh = _RecordedIdMesh(run)
        self._rules = rules
        self._event_count = 0  # events that the changed mesh received
        self._ballot_ids: dict[str, str] = {}  # id of a logged ballot → id of the same computed ballot
        self._logged_by_id: dict[str, Decision] = {}

    @property
    def started(self) -> bool:
        return self._mesh.state.started

    @property
    def tick(self) -> int:
        return self._mesh.state.tick

    def feed(self, event: Event) -> tuple[LogMessage | None, list[Output]]:
        """Add the next recorded event. Return the message that the changed mesh received, if any, and its outputs. The
        mesh receives neither the original mesh's outputs nor receipts for decisions that it did not make."""
        self._mesh.current_seq, self._mesh.ids_issued = event.seq, 0
        if isinstance(event.body, Malformed):
            return None, self._step(event)
        if names.kind(event.subject) in OUTPUT_KINDS:
            self._record_output(event.seq, event.body)
            return None, []
        body = self._translate(event.body)
        outputs = [] if body is None else self._step(replace(event, body=body))
        return body, outputs

    def add(self, subject: str, body: LogMessage, after: Event) -> list[Output]:
        """Add a message that the recording does not contain, right after the recorded event `after`."""
        return self._step(Event(after.seq, subject, body.wire(), after.time, body))

    def ballot_id(self, actuator: str) -> str:
        """Return the id of the open ballot on an actuator, or an empty string if there is none."""
        ballot = self._mesh.ballots.get(actuator)
        return ballot.opened.id if ballot else ""

    def value(self, actuator: str) -> Value:
        """Return the actuator's current value in the changed mesh."""
        return self._mesh.state.effective.get(actuator)

    def divergences(self) -> list[Divergence]:
        """Return the decisions that differ, sorted by tick. Decisions are matched by tick, actuator, and order among
        decisions with the same tick and actuator. Differences in the wording of a reason do not count. At the end of an
        unfinished log, the last tick's decisions may not be logged yet, so they are skipped."""
        logged_by_key = _index_by_key(decision for _, decision in self.logged)
        computed_by_key = _index_by_key(self.computed)
        seqs = {decision.id: seq for seq, decision in self.logged}
        divergences = []
        for key in sorted(logged_by_key.keys() | computed_by_key.keys()):
            logged, computed = logged_by_key.get(key), computed_by_key.get(key)
            tick, actuator, _ = key
            if logged is None and tick == self.tick and not self._mesh.state.ended:
                continue
            if logged is not None and computed is not None and _effect(logged) == _effect(computed):
                continue
            decision = logged or computed
            assert decision is not None
            subject = self._mesh.subjects.decision(decision.id)
            seq = seqs[decision.id] if logged is not None else None
            divergences.append(Divergence(tick, actuator, seq, subject, logged, computed))
        return divergences

    def verdict_counts(self) -> dict[str, VerdictCounts]:
        """Return the counts of verdicts by actuator."""
        counts: dict[str, VerdictCounts] = {}
        for _, decision in self.logged:
            counts.setdefault(decision.actuator, VerdictCounts()).logged[decision.verdict] += 1
        for decision in self.computed:
            counts.setdefault(decision.actuator, VerdictCounts()).computed[decision.verdict] += 1
        return dict(sorted(counts.items()))

    def _step(self, event: Event) -> list[Output]:
        self._event_count += 1
        outputs = self._mesh.step(replace(event, seq=self._event_count))
        self._mesh.pending.clear()  # this mesh publishes no outputs
        self.computed += [output.message for output in outputs if isinstance(output.message, Decision)]
        return outputs

    def _record_output(self, seq: int, body: LogMessage) -> None:
        """Record an output of the original mesh. If it opens a ballot, match it with the computed one."""
        if isinstance(body, Decision):
            self.logged.append((seq, body))
            self._logged_by_id[body.id] = body
        elif isinstance(body, BallotOpened):
            ballot = self._mesh.ballots.get(body.actuator)
            if ballot is not None:
                computed = ballot.opened
                if (computed.opened_by, computed.proposal) == (body.opened_by, body.proposal):
                    self._ballot_ids[body.id] = computed.id

    def _translate(self, body: LogMessage) -> LogMessage | None:
        """Return the message with this mesh's rules and ids; None for a receipt of a decision that it did not make."""
        if isinstance(body, RunStarted):
            return body.model_copy(update={"rules": self._rules(body.rules)})
        if isinstance(body, Receipt) and body.decision_id:
            decision = self._matching_decision(body.decision_id)
            if decision is None:
                self.ignored_receipts += 1
                return None
            return body.model_copy(update={"decision_id": decision.id})
        if isinstance(body, Vote):
            return body.model_copy(update={"ballot": self._ballot_ids.get(body.ballot, body.ballot)})
        if isinstance(body, AgentStatus):
            return body.model_copy(update={"seen": self._ballot_ids.get(body.seen, body.seen)})
        if isinstance(body, OperatorCommand):
            decision = self._matching_decision(body.subject_id)
            subject_id = decision.id if decision else self._ballot_ids.get(body.subject_id, body.subject_id)
            return body.model_copy(update={"subject_id": subject_id})
        return body

    def _matching_decision(self, logged_id: str) -> Decision | None:
        """Return this mesh's decision with the same effect as a logged one."""
        logged = self._logged_by_id.get(logged_id)
        if logged is None:
            return None
        candidates = takewhile(lambda decision: decision.tick >= logged.tick, reversed(self.computed))
        return next((decision for decision in candidates if _is_same_decision(decision, logged)), None)


def _is_same_decision(computed: Decision, logged: Decision) -> bool:
    is_same_subject = (computed.tick, computed.actuator) == (logged.tick, logged.actuator)
    return is_same_subject and _effect(computed) == _effect(logged)


def _effect(decision: Decision) -> tuple[object, ...]:
    """Return the parts of a decision that the learner and later decisions depend on."""
    if decision.verdict == "rejected":
        return (decision.verdict,)
    return (decision.verdict, decision.value, decision.apply_at_tick, decision.expires_at_tick)


def _index_by_key(decisions: Iterable[Decision]) -> dict[tuple[int, str, int], Decision]:
    """Return the decisions by tick, actuator, and order among decisions with the same tick and actuator."""
    by_key: dict[tuple[int, str, int], Decision] = {}
    counts: Counter[tuple[int, str]] = Counter()
    for decision in decisions:
        key = (decision.tick, decision.actuator)
        by_key[(*key, counts[key])] = decision
        counts[key] += 1
    return by_key

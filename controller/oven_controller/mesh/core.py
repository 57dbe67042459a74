"""The mesh's core: a deterministic state machine over one ordered log. No clock, no randomness, no I/O.

State changes on inputs only (what learner, agents and operators say). Its own outputs, read back from the log, merely
leave `pending`; so a replica that replays to the head knows exactly what is still to be published.

One observation, in this order: the tick moves on; the ballots that are due close at the new tick (so that
`apply_at_tick` lies ahead of it); agents that were silent too long are lost; ballots for which only those were awaited
close; lockstep may close the tick.
"""

from __future__ import annotations

from dataclasses import dataclass

from oven_controller import names
from oven_controller.events import Event
from oven_controller.mesh import guardrails, tally
from oven_controller.mesh.ballots import Ballot, Refusal, asked_for, examined
from oven_controller.mesh.state import State
from oven_controller.mesh.values import clip, direction
from oven_controller.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    Message,
    Observation,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    TallyLine,
    Value,
    Vote,
)
from oven_controller.wire import Malformed

OUTPUTS = ("ballot", "decision", "outcome", "answer", "step")
"""Kinds of subjects that the mesh itself writes."""
_LAST_TICK = 2**53  # a tick beyond what JSON readers hold exactly is a fault of the sender


@dataclass(frozen=True, slots=True)
class Output:
    """What to publish, and where."""

    subject: str
    message: Message


class Mesh:
    """One replica's mind for one run. Feed it the log in order; publish what `pending` holds."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.subjects = names.Subjects(run)
        self.state = State()
        self.ballots: dict[str, Ballot] = {}  # the open one of each actuator, in order of opening
        self.pending: dict[str, Output] = {}  # by subject, in order of emission; not yet read back
        self.divergence: str | None = None  # the first output in the log that this replica would not have written
        self._seq = 0
        self._index = 0
        self._emitted: list[Output] = []

    def step(self, event: Event) -> list[Output]:
        """Take the next event of the log; the outputs that it causes, which `pending` holds from now on too.

        Never raises: whatever an agent writes, all replicas judge it alike. An event that was taken before (a
        redelivery, known by its sequence) is skipped.
        """
        if event.seq <= self._seq or not event.subject.startswith(f"{self.subjects.base}."):
            return []
        self._seq, self._index, self._emitted = event.seq, 0, []
        kind = names.kind(event.subject)
        if isinstance(event.body, Malformed):
            # On the mesh's own subjects too: a server can be made to write an acknowledgement there.
            self.state.counters[f"malformed.{clip(kind, 40)}"] += 1
        elif kind in OUTPUTS:
            self._read_back(event)
        else:
            self._take(event.body, event.author)
            self._settle()
        return self._emitted

    def _take(self, body: Message, author: str) -> None:
        state = self.state
        if isinstance(body, LearnerMessage):
            if isinstance(body, RunStarted | Observation) and body.tick > _LAST_TICK:
                state.counters["malformed.tick"] += 1
            elif state.is_new(body):
                self._take_from_learner(body)
        elif not names.NAME.fullmatch(author):
            state.counters["malformed.author"] += 1
        elif isinstance(body, AgentStatus):
            state.note(author, body)
        elif isinstance(body, Vote):
            self._take_vote(author, body)
        elif isinstance(body, OperatorCommand):
            if body.id in state.commands:
                state.counters["operator.repeated"] += 1
            state.commands.setdefault(body.id, (author, body))

    def _take_from_learner(self, body: LearnerMessage) -> None:
        state = self.state
        if isinstance(body, Observation):
            if body.tick < state.tick:
                state.counters["observation.tick_went_back"] += 1
            state.tick, state.observed = max(state.tick, body.tick), True
            for ballot in [ballot for ballot in self.ballots.values() if ballot.due(state.tick)]:
                self._close(ballot)
            state.lose_silent()
        elif isinstance(body, Receipt):
            state.take(body)
        elif isinstance(body, RunStarted):
            self._start(body)
        elif isinstance(body, RunEnded):
            state.ended = True
            for ballot in list(self.ballots.values()):
                self._abandon(ballot, f"the run ended ({body.reason}) before the ballot closed")

    def _start(self, body: RunStarted) -> None:
        old = self.state.specs
        self.state.start(body)
        for actuator, ballot in list(self.ballots.items()):
            spec = self.state.specs.get(actuator)
            if spec is None or spec.model_copy(update={"value": old[actuator].value}) != old[actuator]:
                self._abandon(ballot, f"the learner restarted and no longer announces {actuator} as it was")

    def _take_vote(self, author: str, vote: Vote) -> None:
        state, agent = self.state, self.state.hear(author)
        ballot = self.ballots.get(vote.actuator)
        if not state.started or state.ended:
            state.counters["vote.no_run"] += 1
            return
        if vote.ballot and (ballot is None or ballot.opened.id != vote.ballot):
            state.counters["vote.late"] += 1
            return
        value: Value = None
        if vote.stance == "propose":
            found = examined(author, vote, agent, state.specs)
            if isinstance(found, Refusal):
                self._refuse(vote, found)
                return
            value = found
        if agent is None:
            state.counters["refused.not_joined"] += 1
        elif ballot is None and vote.stance != "propose":
            state.counters["vote.late"] += 1
        else:
            ballot = ballot or self._open(author, vote, value)
            if not ballot.take(author, vote, value, vote.actuator in agent.speciality):
                state.counters["vote.not_eligible"] += 1

    def _open(self, author: str, vote: Vote, value: Value) -> Ballot:
        state = self.state
        opened = BallotOpened(
            id=self._next_id(),
            actuator=vote.actuator,
            proposal=value,
            opened_by=author,
            tick=state.tick,
            closes_at_tick=state.tick + state.rules.window_ticks,
            eligible=state.live(),
        )
        self.ballots[vote.actuator] = ballot = Ballot(opened)
        self._emit(self.subjects.ballot(opened.id), opened)
        return ballot

    def _settle(self) -> None:
        """Whatever the input was, it may have been the last word that a ballot or the tick waited for."""
        state = self.state
        for ballot in [ballot for ballot in self.ballots.values() if ballot.complete(state.agents)]:
            self._close(ballot)
        if not state.lockstep or not state.observed or state.ended or self.ballots or state.closed_tick >= state.tick:
            return
        if all(agent.done_tick >= state.tick for agent in state.agents.values() if agent.live):
            state.closed_tick = state.tick
            self._emit(self.subjects.step(state.tick), StepClosed(tick=state.tick))

    def _close(self, ballot: Ballot) -> None:
        state, actuator = self.state, ballot.opened.actuator
        spec = state.specs[actuator]
        count = tally.count(ballot, spec, state.effective.get(actuator), state.rules, state.reputations)
        adopted, value, reason = count.passed, count.value, count.reason
        if adopted:
            ruling = guardrails.rule(state, spec, count)
            adopted, value = ruling.adopted, ruling.value
            reason = f"{reason}; {ruling.note}" if ruling.note else reason
        decision = self._decide(ballot.opened.id, actuator, adopted, value, reason, count.lines)
        if adopted:
            state.adopt(decision, direction(decision.before, decision.value))

    def _abandon(self, ballot: Ballot, reason: str) -> None:
        lines = tally.lines_of(ballot, self.state.reputations)
        self._decide(ballot.opened.id, ballot.opened.actuator, False, ballot.opened.proposal, reason, lines)

    def _refuse(self, vote: Vote, refusal: Refusal) -> None:
        """The first of its kind is told to everyone; the log is not the place for the ten thousandth."""
        self.state.counters[f"refused.{refusal.key[2]}"] += 1
        if refusal.key not in self.state.refused:
            self.state.refused.add(refusal.key)
            self._decide("", clip(vote.actuator, 120), False, asked_for(vote.value), refusal.reason, ())

    def _decide(
        self, ballot: str, actuator: str, adopted: bool, value: Value, reason: str, lines: tuple[TallyLine, ...]
    ) -> Decision:
        state = self.state
        spec = state.specs.get(actuator)
        apply_at = state.tick + state.rules.apply_delay_ticks
        decision = Decision(
            id=self._next_id(),
            ballot=ballot,
            actuator=actuator,
            verdict="adopted" if adopted else "rejected",
            value=value,
            before=state.effective.get(actuator),
            reason=reason,
            tally=lines,
            tick=state.tick,
            apply_at_tick=apply_at,
            expires_at_tick=apply_at + state.rules.expire_ticks,
            snapshot_first=adopted and spec is not None and spec.risky,
        )
        if ballot:
            del self.ballots[actuator]
        self._emit(self.subjects.decision(decision.id), decision)
        return decision

    def _next_id(self) -> str:
        """Unique without a counter in the state: the sequence of the event that caused it, and a place within that."""
        self._index += 1
        return f"{self._seq:012d}-{self._index - 1:02d}"

    def _emit(self, subject: str, message: Message) -> None:
        self.pending[subject] = output = Output(subject, message)
        self._emitted.append(output)

    def _read_back(self, event: Event) -> None:
        output = self.pending.pop(event.subject, None)
        if self.divergence is not None:
            return
        if output is None:
            self.divergence = f"event {event.seq} on {event.subject} is none that this replica computed"
        elif event.data != output.message.wire():
            logged = clip(event.data.decode(errors="replace"), 2000)
            computed = clip(output.message.wire().decode(), 2000)
            self.divergence = f"event {event.seq} on {event.subject} reads {logged} where this replica has {computed}"

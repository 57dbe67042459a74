"""The core of the mesh: a deterministic state machine over one ordered log, without a clock, randomness or I/O.

Only inputs change the state: messages from the learner, the agents and the operators. When the mesh reads one of its
own outputs from the log, it only removes the output from `pending`. So a replica that has replayed the whole log knows
which outputs are not published yet.

An observation is handled in this order. The tick advances. Due outcomes are measured. Due ballots close at the new
tick, from which `apply_at_tick` is counted. Agents that were silent for too long are marked as not live. Ballots that
were waiting only for those agents close. In lockstep, the tick may close.

Lockstep waits for the live agents whose votes count, and never for a shadow agent. A shadow's votes have no effect, so
the run stays repeatable, and a shadow that hangs does not delay it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from oven_core.mesh import guardrails, operator_commands, plans, tally
from oven_core.mesh.actuator_values import clip, direction
from oven_core.mesh.ballots import Ballot, Refusal, bounded_value, opening_refusal, proposed_value
from oven_core.mesh.forecast import Forecast, make_forecast, refuse_unjudged
from oven_core.mesh.measurements import MAX_TICK
from oven_core.mesh.outcomes import Outcomes
from oven_core.mesh.outputs import OUTPUT_KINDS, Output, ReadBack
from oven_core.mesh.state import State
from oven_core.protocol import names
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    Message,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    TallyLine,
    Value,
    Vote,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand

Verdict = Literal["adopted", "rejected", "advised"]


class Mesh:
    """The mesh of one run, as one replica computes it.

    Pass the events of the log to `step` in order, and publish the outputs in `pending`."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.subjects = names.Subjects(run)
        self.state = State()
        self.outcomes = Outcomes(self.state)
        self.ballots: dict[str, Ballot] = {}
        """The open ballot of each actuator, in order of opening."""
        self.pending: dict[str, Output] = {}
        """Outputs that are not yet in the log, by subject, in the order in which they were computed."""
        self._read_back = ReadBack(self.pending)
        self._subject_prefix = f"{self.subjects.base}."
        self._seq = 0  # sequence number of the current event
        self._index = 0  # number of ids that the current event has used
        self._stored_at = UNKNOWN_TIME  # time at which the current event was stored
        self._emitted: list[Output] = []

    def step(self, event: Event) -> list[Output]:
        """Handle the next event of the log, and return the outputs that it causes. They are also added to `pending`.

        Skips events that were already handled. Never raises, whatever an agent writes, because all replicas must
        handle it alike. `signing.Keyring` has verified the signatures, so a forged event arrives as Malformed."""
        if event.seq <= self._seq or not event.subject.startswith(self._subject_prefix):
            return []
        self._seq, self._index, self._emitted = event.seq, 0, []
        self._stored_at = event.time
        kind = names.kind(event.subject)
        if isinstance(event.body, Malformed):
            # This includes the mesh's own subjects. An attacker can make the server write an acknowledgement there.
            for fault in {"malformed", event.body.fault}:  # every fault also counts as malformed
                self.state.counters[f"{fault}.{clip(kind, 40)}"] += 1
        elif kind in OUTPUT_KINDS:
            if self.repeats(event):
                self.state.counters[f"repeated.{kind}"] += 1
            else:
                self._read_back.compare(event)
        else:
            self._on_message(event.body, event.author)
            self._settle()
        return self._emitted

    def _on_message(self, body: Message, author: str) -> None:
        state = self.state
        if isinstance(body, LearnerMessage):
            if isinstance(body, RunStarted | Observation) and body.tick > MAX_TICK:
                state.counters["malformed.tick"] += 1
            elif state.is_new(body):
                self._on_learner_message(body)
        elif not names.NAME.fullmatch(author):
            state.counters["malformed.author"] += 1
        elif isinstance(body, AgentStatus):
            state.apply_status(author, body)
        elif isinstance(body, Vote):
            self._on_vote(author, body)
        elif isinstance(body, OperatorCommand):
            if body.id in state.commands:
                state.counters["operator.repeated"] += 1
            else:
                state.commands[body.id] = (author, body)
                self._on_command(author, body)

    def _on_learner_message(self, body: LearnerMessage) -> None:
        state = self.state
        if isinstance(body, Observation):
            if body.tick < state.tick:
                state.counters["observation.tick_went_back"] += 1
            elif body.tick > state.tick:
                state.pace.add(self._stored_at.timestamp())
            state.tick, state.observed = max(state.tick, body.tick), True
            state.apply_observation(body)
            self._publish(self.outcomes.observe(body))
            self._publish(self.outcomes.harm_outcomes(self._next_id))
            self._close_ready()
            state.mark_silent_agents()
        elif isinstance(body, Receipt):
            state.apply_receipt(body)
            self._publish(self.outcomes.apply_receipt(body))
        elif isinstance(body, RunStarted):
            self._start(body)
        elif isinstance(body, ActuatorAnnounced):
            self._announce(body.actuator)
        elif isinstance(body, RunEnded):
            state.ended = True
            for ballot in list(self.ballots.values()):
                self._abandon(ballot, f"the run ended ({body.reason}) before the ballot closed")
            self._publish(self.outcomes.end(f"the run ended ({body.reason})"))

    def _start(self, body: RunStarted) -> None:
        old_specs, is_new_training = self.state.specs, body.training != self.state.training
        self.state.start(body)
        self._publish(self.outcomes.start(body.metrics))
        for actuator, ballot in list(self.ballots.items()):
            spec = self.state.specs.get(actuator)
            old = old_specs[actuator]
            if is_new_training:
                self._abandon(ballot, f"training {body.training} started before the ballot closed")
            elif spec is None:
                self._abandon(ballot, f"the learner restarted and no longer announces {actuator}")
            elif spec.model_copy(update={"value": old.value}) != old:
                self._abandon(ballot, f"the learner restarted and announced a different {actuator}")

    def _announce(self, spec: ActuatorSpec) -> None:
        """Store an announcement, and close an open ballot that it invalidates."""
        old, ballot = self.state.specs.get(spec.name), self.ballots.get(spec.name)
        if not self.state.announce(spec) or old is None or ballot is None:
            return
        if reason := ballot.misfit_reason(old, spec):
            self._abandon(ballot, f"the learner announced {spec.name} again: {reason}")

    def _on_vote(self, author: str, vote: Vote) -> None:
        state, agent = self.state, self.state.mark_live(author)
        ballot = self.ballots.get(vote.actuator)
        if not state.started or state.ended:
            state.counters["vote.no_run"] += 1
            return
        if vote.ballot and (ballot is None or ballot.opened.id != vote.ballot):
            state.counters["vote.late"] += 1
            return
        value: Value = None
        if vote.stance == "propose":
            proposed = proposed_value(author, vote, agent, state.specs)
            if not isinstance(proposed, Refusal):
                proposed = refuse_unjudged(author, vote, state) or proposed
            if isinstance(proposed, Refusal):
                self._refuse(vote, proposed)
                return
            value = proposed
        if agent is None:
            state.counters["refused.not_joined"] += 1
        elif ballot is None and vote.stance != "propose":
            state.counters["vote.late"] += 1
        elif ballot is None and state.is_shadow(author):
            state.counters["shadow.proposed"] += 1
        elif ballot is None and (refusal := opening_refusal(state, self.ballots, author, vote)):
            self._refuse(vote, refusal)
        elif not state.vote_limits.count_vote(author, state.tick, state.rules):
            state.counters["vote.too_many"] += 1
        else:
            ballot = ballot or self._open(author, vote, value)
            if not ballot.add_vote(author, vote, value, state.is_shadow(author)):
                state.counters["vote.not_eligible"] += 1

    def _on_command(self, author: str, command: OperatorCommand) -> None:
        state, decision_id = self.state, ""
        reply = operator_commands.respond(state, self.ballots, author, command)
        if reply is None:
            return
        if reply.closed_actuator:
            decision_id = self._abandon(self.ballots[reply.closed_actuator], reply.close_reason).id
        if reply.adoption is not None:
            decision_id = self._adopt(reply.adoption, command.id).id
        answer = CommandAnswer(
            command=command.id,
            operator=author,
            action=command.action,
            done=reply.done,
            reason=reply.reason,
            decision=decision_id,
            tick=state.tick,
        )
        self._emit(self.subjects.answer(self._next_id()), answer)

    def _adopt(self, adoption: operator_commands.Adoption, command: str) -> Decision:
        """Adopt a value that an operator set or approved. An approval keeps the votes and forecast of the advice."""
        advice, fields = adoption.advice, dict[str, Any]()
        if advice is not None:
            fields = {"approves": advice.id, "target": advice.target, "horizon": advice.horizon}
            fields["expected_change"] = advice.expected_change
            for line in advice.tally:
                if line.stance == "propose":
                    self.state.vote_limits.record_approval(line.agent)
        lines = advice.tally if advice is not None else ()
        return self._decide(
            "", adoption.spec.name, "adopted", adoption.value, adoption.reason, lines, command=command, **fields
        )

    def _open(self, author: str, vote: Vote, value: Value) -> Ballot:
        state = self.state
        opened = BallotOpened(
            id=self._next_id(),
            actuator=vote.actuator,
            proposal=value,
            opened_by=author,
            evidence=vote.evidence,
            tick=state.tick,
            closes_at_tick=state.tick + state.rules.window_ticks,
            eligible=state.voters(),
        )
        self.ballots[vote.actuator] = ballot = Ballot(opened)
        self._emit(self.subjects.ballot(opened.id), opened)
        return ballot

    def _settle(self) -> None:
        """Close the ballots that are ready after this input and, in lockstep, the tick."""
        state = self.state
        self._close_ready()
        if not state.lockstep or not state.observed or state.ended or self.ballots or state.closed_tick >= state.tick:
            return
        if state.voters_are_done():
            state.closed_tick = state.tick
            self._emit(self.subjects.step(state.tick), StepClosed(tick=state.tick))

    def _close_ready(self) -> None:
        """Close the ballots that are due or have all votes.

        Ballots that a plan links close together. But a ballot closes alone when it is overdue by a whole window.
        Otherwise a series of plans could keep it open."""
        tick, window = self.state.tick, self.state.rules.window_ticks
        for actuator in list(self.ballots):
            ballot = self.ballots.get(actuator)
            if ballot is None or not self._is_ready(actuator):
                continue
            group = plans.linked_actuators(self.ballots, actuator, self.state)
            if all(map(self._is_ready, group)):
                self._close([self.ballots[name] for name in group])
            elif ballot.is_due(tick - window):
                self._close([ballot])

    def _is_ready(self, actuator: str) -> bool:
        """Return whether the ballot is due, or has all votes that it waits for.

        It waits for newcomers only until the next tick, except in lockstep or if only they propose the change."""
        state, ballot = self.state, self.ballots[actuator]
        if ballot.is_due(state.tick) or plans.is_complete(self.ballots, actuator, state):
            return True
        if state.lockstep or state.tick <= ballot.opened.tick:
            return False
        has_trusted_votes = plans.is_complete(self.ballots, actuator, state, await_newcomers=False)
        return has_trusted_votes and self._count_votes(ballot).passed

    def _close(self, ballots: list[Ballot]) -> None:
        state = self.state
        results = plans.settle(ballots, self._compute_result)
        adopted = tuple(ballot.opened.actuator for ballot, result in results if result.verdict == "adopted")
        for ballot, result in results:
            actuator, verdict = ballot.opened.actuator, cast(Verdict, result.verdict)
            spec = state.specs[actuator]
            self._record_result(ballot, result)
            forecast = make_forecast(state, ballot, spec, result.lines) if verdict != "rejected" else None
            plan = adopted if len(adopted) > 1 and verdict == "adopted" else ()
            self._decide(
                ballot.opened.id, actuator, verdict, result.value, result.reason, result.lines, forecast, plan=plan
            )

    def _count_votes(self, ballot: Ballot, excluded_agents: frozenset[str] = frozenset()) -> tally.Tally:
        state, actuator = self.state, ballot.opened.actuator
        spec, before = state.specs[actuator], state.effective.get(actuator)
        return tally.count_votes(
            ballot,
            spec,
            before,
            state.rules,
            lambda agent: state.standing(agent, actuator),
            excluded_agents,
            self.outcomes.harm_beyond_doubt(),
            state.autonomy_for(actuator) == "advise",
        )

    def _compute_result(
        self, ballot: Ballot, excluded_agents: frozenset[str], adopted_with: Sequence[str]
    ) -> plans.BallotResult:
        """Return the verdict of the tally and the guardrails on one ballot."""
        state, actuator = self.state, ballot.opened.actuator
        spec, before = state.specs[actuator], state.effective.get(actuator)
        counted = self._count_votes(ballot, excluded_agents)
        verdict: Verdict = "rejected"
        value, reason, note = counted.value, counted.reason, counted.reason
        if counted.passed:
            ruling = guardrails.judge_change(state, spec, counted, adopted_with)
            verdict, value, note = ruling.verdict, ruling.value, ruling.note
            reason = f"{reason}; {note}" if note else reason
        return plans.BallotResult(
            verdict=verdict,
            before=before,
            value=value,
            direction=direction(before, value),
            reason=reason,
            note=note,
            lines=counted.lines,
            only_newcomers=counted.only_newcomers,
            veto=counted.veto,
            passed=counted.passed,
        )

    def _record_result(self, ballot: Ballot, result: plans.BallotResult) -> None:
        """Record success or failure for the opener of the ballot, and a veto for the agents that voted against it."""
        state, opener = self.state, ballot.opened.opened_by
        actuator = ballot.opened.actuator
        if result.passed and result.only_newcomers:
            state.vote_limits.record_advice(opener, state.tick)
        elif result.passed:
            state.vote_limits.record_success(opener, actuator)
        elif opener in ballot.votes:
            is_newcomer = not state.is_trusted(opener, actuator)
            state.vote_limits.record_failure(opener, is_newcomer, ballot.votes[opener].vote, state.tick)
        if result.veto:
            self.outcomes.add_veto(ballot, result.lines)

    def _abandon(self, ballot: Ballot, reason: str) -> Decision:
        """Reject an open ballot without counting its votes."""
        actuator = ballot.opened.actuator
        lines = tally.tally_lines(ballot, lambda agent: self.state.standing(agent, actuator))
        return self._decide(ballot.opened.id, actuator, "rejected", ballot.opened.proposal, reason, lines)

    def _refuse(self, vote: Vote, refusal: Refusal) -> None:
        """Log the first refusal of its kind, and count all of them."""
        self.state.counters[f"refused.{refusal.key[2]}"] += 1
        if refusal.key not in self.state.logged_refusals:
            self.state.logged_refusals.add(refusal.key)
            self._decide("", clip(vote.actuator, 120), "rejected", bounded_value(vote.value), refusal.reason, ())

    def _decide(
        self,
        ballot: str,
        actuator: str,
        verdict: Verdict,
        value: Value,
        reason: str,
        lines: tuple[TallyLine, ...],
        forecast: Forecast | None = None,
        **fields: Any,
    ) -> Decision:
        """Create, store and emit a decision. `fields` sets further fields of `Decision`."""
        state, decision_id = self.state, self._next_id()
        spec = state.specs.get(actuator)
        before = state.effective.get(actuator)
        if verdict == "adopted" and spec is not None and "command" not in fields:
            suspension = state.vote_limits.add_change(spec, before, value, lines, state.tick, state.rules)
            reason = f"{reason}; {suspension}" if suspension else reason
        apply_at = state.tick + state.rules.apply_delay_ticks
        expire_ticks = 0 if state.lockstep else state.pace.max_ticks(state.rules.expire_seconds)
        expires_at = apply_at + max(state.rules.expire_ticks, expire_ticks)
        if verdict == "advised":
            ticks = max(state.rules.approve_ticks, state.pace.ticks(state.rules.approve_minutes))
            reason = f"{reason}; {operator_commands.approval_hint(decision_id, ticks)}"
            expires_at = state.tick + ticks
        decision = Decision(
            id=decision_id,
            ballot=ballot,
            actuator=actuator,
            verdict=verdict,
            value=value,
            before=before,
            reason=reason,
            tally=lines,
            tick=state.tick,
            apply_at_tick=apply_at,
            expires_at_tick=expires_at,
            snapshot_first=verdict == "adopted" and spec is not None and spec.risky,
            **fields,
        )
        decision = self.outcomes.attach_forecast(decision, forecast)
        if ballot:
            del self.ballots[actuator]
        state.apply_decision(decision)
        self._emit(self.subjects.decision(decision.id), decision)
        return decision

    def _publish(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._emit(self.subjects.outcome(outcome.decision_id), outcome)

    def _next_id(self) -> str:
        """Return a unique id from the current event's sequence number and an index."""
        self._index += 1
        return f"{self._seq:012d}-{self._index - 1:02d}"

    def _emit(self, subject: str, message: Message) -> None:
        self.pending[subject] = output = Output(subject, message)
        self._emitted.append(output)

    @property
    def divergence(self) -> str | None:
        """Description of the first output in the log that this replica would not have written, or None."""
        return self._read_back.divergence

    def repeats(self, event: Event) -> bool:
        """Return whether the event repeats, byte for byte, an earlier output of the mesh on its subject."""
        return self._read_back.repeats(event, self.state.closed_tick)

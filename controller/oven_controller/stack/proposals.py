"""Cast one proposal as a newcomer, for `propose` and the MCP tool of the same name, and wait for the mesh's answer.

The proposer has its own agent name and key, so the guardrails and the limits on newcomers apply to it as to any agent.
It joins, votes, and reports that it cannot fire. So neither a ballot nor lockstep waits for it, and `trust` knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_controller.stack.agent_keys import admit
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.mesh.actuator_values import Fault, coerce_proposal
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, BallotOpened, Decision, LogMessage, Message, Value, Vote
from oven_core.protocol.subjects import agent_subject
from oven_core.security.signing import Keyring
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import connect
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.run_summary import format_value

DEFAULT_CONFIDENCE: Final = 0.6
"""The default of `rules.quorum_confidence`, below which a newcomer's proposal cannot become advice."""
DEFAULT_WAIT_S: Final = 60.0
"""Seconds to wait for the answer. A ballot closes after a few steps, so a run with slow steps needs more."""
CALLED: Final = "votes only when somebody calls `propose`"

Answer = Literal["adopted", "advised", "rejected", "refused", "pending"]
EXIT_CODES: Final[dict[Answer, int]] = {"adopted": 0, "advised": 0, "rejected": 1, "refused": 1, "pending": 3}


class ProposalReport(BaseModel):
    """A proposal and the mesh's answer."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    run: str
    agent: str = Field(description="the name under which the log has the vote")
    actuator: str
    value: Value = Field(description="the proposed value")
    answer: Answer = Field(
        description="adopted; advised: it waits for a person's `approve`; rejected: a ballot failed; refused: the vote "
        "was not counted; pending: no answer yet"
    )
    reason: str = Field(description="the mesh's reason, or what is missing")
    vote: int = Field(description="sequence number of the vote in the log; 0 if the vote has not arrived there")
    ballot: str = Field(description="id of the ballot; empty without one")
    decision: Decision | None = Field(description="the decision on the ballot; null without one")
    code: int = Field(description="the command's exit code: 0 adopted or advised; 1 rejected or refused; 3 pending")

    def lines(self) -> list[str]:
        """Describe the answer for people."""
        change = self.actuator if self.value is None else f"{self.actuator} {format_value(self.value)}"
        vote = f"as event {self.vote} of {self.run}" if self.vote else f"to {self.run}"
        ballot = f", ballot {self.ballot}" if self.ballot else ""
        lines = [f"{self.agent} proposed {change} {vote}{ballot}", f"{self.answer}: {self.reason}"]
        return [*lines, f"oven-controller explain {self.decision.id} --run {self.run}"] if self.decision else lines


def cast_proposal(
    folder: RunFolder,
    agent: str,
    actuator: str,
    value: Value,
    why: str,
    *,
    confidence: float = DEFAULT_CONFIDENCE,
    wait_s: float = DEFAULT_WAIT_S,
    on_event: Callable[[Event], object] = lambda _: None,
) -> ProposalReport:
    """Propose a value as the agent `agent`, and return the mesh's answer, after at most `wait_s` seconds.

    `on_event` is called for each event that is read. Raises UnknownNameError for an actuator that the run does not
    have, ConfigError for an invalid value or without a reason, and BusError if the vote cannot be sent.
    """
    if not why.strip():
        raise ConfigError("a proposal needs a reason with figures; give it with --why")
    admit(folder, agent)
    return asyncio.run(_cast(_Proposal(folder, agent, actuator, value, why, confidence), wait_s, on_event))


class _Proposal:
    """One proposal and a copy of the mesh, which reads the same log and so knows the outcome of the vote.

    The log alone is not enough: the mesh logs only the first refusal of each kind."""

    def __init__(self, folder: RunFolder, agent: str, actuator: str, value: Value, why: str, confidence: float) -> None:
        self.access, self.agent = LocalRun(folder), agent
        self.mesh = Mesh(folder.run)
        self.seq = 0
        """Sequence number of the newest event that the copy has read."""
        self._actuator, self._value, self._why, self._confidence = actuator, value, why, confidence
        self._vote: Vote | None = None
        self._vote_seq, self._ballot = 0, ""

    def make_vote(self) -> Vote:
        """Return the vote. Raises the errors of `cast_proposal`."""
        state = self.mesh.state
        if not state.started or state.ended:
            raise ConfigError(
                f"run {self.access.run!r} is not training now, so nothing can be proposed; try again when "
                f"`oven-controller status {self.access.run}` shows a step"
            )
        spec = state.specs.get(self._actuator)
        if spec is None:
            raise UnknownNameError("actuator", self._actuator, state.specs)
        value = coerce_proposal(spec, self._value)
        if isinstance(value, Fault):
            raise ConfigError(f"{format_value(self._value)} cannot be proposed for {spec.name}, {value.problem}")
        self._value = value
        self._vote = Vote(
            actuator=spec.name,
            stance="propose",
            value=value,
            tick=state.tick,
            confidence=self._confidence,
            rationale=self._why,
        )
        return self._vote

    async def send(self, vote: Vote) -> None:
        """Join, vote and report that no other vote follows. Raises BusError."""
        joined = AgentStatus(state="joined", tick=vote.tick, moves=(vote.actuator,), reason=CALLED)
        idle = AgentStatus(state="cannot_fire", tick=vote.tick, reason=CALLED)
        messages: tuple[LogMessage, ...] = (joined, vote, idle)
        async with connect(self.access.folder, "agent", self.agent) as bus:
            for message in messages:  # the stream of votes confirms nothing; `feed` sees the vote in the log
                await bus.publish(agent_subject(self.access.run, self.agent, message), message.wire())
            await bus.flush()

    def feed(self, event: Event) -> ProposalReport | None:
        """Read the log's next event. Return the report if the answer is known."""
        self.seq = event.seq
        is_own_vote = not self._vote_seq and event.author == self.agent and event.body == self._vote
        if is_own_vote:
            self._vote_seq = event.seq
            self.mesh.state.logged_refusals.clear()  # so that the copy also explains a refusal that was logged before
        outputs = self.mesh.step(event)
        if is_own_vote:
            return self._read_outputs([output.message for output in outputs])
        if self._ballot and isinstance(event.body, Decision) and event.body.ballot == self._ballot:
            return self.report(event.body.verdict, event.body.reason, event.body)
        return None

    def _read_outputs(self, outputs: list[Message]) -> ProposalReport | None:
        """Return the report if the vote was not counted. Otherwise remember the ballot."""
        for output in outputs:
            if isinstance(output, BallotOpened):
                self._ballot = output.id
                return None
            if isinstance(output, Decision):
                return self.report("refused", output.reason)
        ballot = self.mesh.ballots.get(self._actuator)
        if ballot is None or self.agent not in ballot.votes:
            reason = "the agent cast too many votes at this tick; try again after the next step"
            if ballot is not None:
                reason = (
                    f"ballot {ballot.opened.id} on {self._actuator} is open, and only agents that had joined before it "
                    f"opened may vote on it; it closes by tick {ballot.opened.closes_at_tick}: try again after that"
                )
            return self.report("refused", reason)
        self._ballot = ballot.opened.id
        return None

    def report(self, answer: Answer, reason: str, decision: Decision | None = None) -> ProposalReport:
        """Return the report with this answer."""
        return ProposalReport(
            run=self.access.run,
            agent=self.agent,
            actuator=self._actuator,
            value=self._value,
            answer=answer,
            reason=reason,
            vote=self._vote_seq,
            ballot=self._ballot,
            decision=decision,
            code=EXIT_CODES[answer],
        )

    def report_pending(self, wait_s: float) -> ProposalReport:
        """Return the report without an answer."""
        if not self.access.is_up():
            return self.report("pending", "the stack is down; the log has no answer")
        if not self._vote_seq:
            return self.report("pending", f"the vote was sent, but is not in the log after {wait_s:g} s")
        ballot = self.mesh.ballots.get(self._actuator)
        state = "has closed, but no mesh has logged the decision"
        if ballot is not None:
            closing = f"it closes by tick {ballot.opened.closes_at_tick}, and the run is at tick {self.mesh.state.tick}"
            state = f"is still open: {closing}"
        hint = f"`oven-controller decisions {self.access.run}` will show the answer"
        return self.report("pending", f"after {wait_s:g} s, the ballot {state}; {hint}")


async def _cast(proposal: _Proposal, wait_s: float, on_event: Callable[[Event], object]) -> ProposalReport:
    access, keyring = proposal.access, proposal.access.keyring()
    await _read_log(proposal, keyring, on_event)
    await proposal.send(proposal.make_vote())
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(wait_s),
            contextlib.aclosing(access.follow(after=proposal.seq, keyring=keyring)) as events,
        ):
            async for event in events:
                on_event(event)
                if (report := proposal.feed(event)) is not None:
                    return report
    return proposal.report_pending(wait_s)


async def _read_log(proposal: _Proposal, keyring: Keyring, on_event: Callable[[Event], object]) -> None:
    async with contextlib.aclosing(proposal.access.events(keyring=keyring)) as events:
        async for event in events:
            on_event(event)
            proposal.feed(event)

"""Asks the knowledge graph before a message is published: to choose a plan, for topics, or for its own review.

If the service is down or late, the agent's first plan is published, and the graph abstains. This does no harm, because
the mesh has separate rules against the changes that the graph forbids.

`consultation` is a generator that yields each request as (endpoint, request) and receives the reply, or None.
`answer_requests` answers its requests with a function in this process. `answer_requests_by_service` answers them with
the prior service, which is the process that serves the knowledge graph on the bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from pydantic import ValidationError

from oven_agents.sdk.alternative_plans import (
    Alternatives,
    GraphReview,
    TopicShares,
    UnsentMessage,
    best_plan,
    diagnose_request,
    phase,
    without_graph,
)
from oven_agents.sdk.window import Knob
from oven_core.bus.connection import Bus
from oven_core.bus.streams import VOTE_BYTES
from oven_core.errors import BusError
from oven_core.mesh.change_requirements import change_between
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.evidence import read_symptoms
from oven_core.protocol.graph_requests import (
    Curriculum,
    Diagnosis,
    EvidencePath,
    Judgement,
    JudgeRequest,
    Symptom,
)
from oven_core.protocol.messages import AgentStatus, BallotOpened, Message, RunStarted, Vote

log = logging.getLogger("oven.agent")

REPLY_TIMEOUT_S: Final = 0.25
"""Seconds to wait for a reply. A vote that waits longer may miss its ballot."""
RETRY_AFTER_S: Final = 5.0
"""Seconds between a failed request and the next one, so that an agent does not wait for the timeout at every tick."""
MAX_EVIDENCE: Final = 32
"""Maximum number of entries in `Vote.evidence`."""
MAX_IN_FLIGHT: Final = 64
"""Maximum number of entries in `JudgeRequest.in_flight`."""
HEADER_BYTES: Final = 1024
"""Number of bytes that are reserved for headers within a vote's size limit."""

PublishedMessages: TypeAlias = list[Vote | AgentStatus | Alert]
AskPrior: TypeAlias = Callable[[str, bytes], bytes | None]
"""A function from (endpoint, request) to the reply, or None if there was no answer."""
AskService: TypeAlias = Callable[[str, bytes], Awaitable[bytes | None]]
"""A coroutine function from (endpoint, request) to the reply, or None if there was no answer."""
Report: TypeAlias = Callable[[str], None]
"""A function that logs a message."""
Consultation: TypeAlias = Generator[tuple[str, bytes], bytes | None, PublishedMessages]

_Reply = TypeVar("_Reply", bound=Message)
_Result = TypeVar("_Result")


def judge_request(
    ballot: BallotOpened, run: RunStarted, knobs: Mapping[str, Knob], in_flight: Sequence[str]
) -> JudgeRequest:
    """Return the request to judge a proposal. `in_flight` lists adopted changes without a receipt (`Session`)."""
    knob = knobs.get(ballot.actuator)
    return JudgeRequest(
        phase=phase(run),
        changes=change_between(ballot.actuator, knob.value if knob else None, ballot.proposal),
        symptoms=tuple(Symptom(id=symptom) for symptom in read_symptoms(ballot.evidence)),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
        in_flight=tuple(in_flight)[:MAX_IN_FLIGHT],
    )


def citation(path: EvidencePath) -> str:
    """Format a path with its edges, grade and sources:
    "loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; own-faults]"."""
    return f"{path.text} [{' '.join(path.edges)}; {path.grade}; {' '.join(path.sources)}]"


def answer_requests(requests: Generator[tuple[str, bytes], bytes | None, _Result], ask: AskPrior) -> _Result:
    """Answer a generator's requests with a function in this process, and return the generator's result."""
    try:
        request = next(requests)
        while True:
            request = requests.send(ask(*request))
    except StopIteration as end:
        result: _Result = end.value
        return result


async def answer_requests_by_service(
    requests: Generator[tuple[str, bytes], bytes | None, _Result], ask: AskService
) -> _Result:
    """Like `answer_requests`, but with a coroutine function such as `PriorClient.ask`."""
    try:
        request = next(requests)
        while True:
            request = requests.send(await ask(*request))
    except StopIteration as end:
        result: _Result = end.value
        return result


def consultation(
    message: UnsentMessage, run: RunStarted | None, knobs: Mapping[str, Knob], in_flight: Sequence[str], report: Report
) -> Consultation:
    """Yield the requests about one message, and return the messages to publish."""
    if run is None:
        return without_graph([message])
    if isinstance(message, Alternatives):
        reply = yield "diagnose", diagnose_request(message.symptoms, run).wire()
        plan, paths = best_plan(message, _parse(Diagnosis, reply, report))
        return [_with_evidence(vote, [f"chosen: {citation(path)}" for path in paths]) for vote in plan.votes]
    if isinstance(message, TopicShares):
        reply = yield "curriculum", message.question.wire()
        proposal = message.resolve(_parse(Curriculum, reply, report))
        return [] if proposal is None else [proposal]
    if isinstance(message, GraphReview):
        question = judge_request(message.ballot, run, knobs, in_flight)
        judgement = _parse(Judgement, (yield "judge", question.wire()), report)
        diagnosis = None
        if question.symptoms and judgement is not None and judgement.verdict == "support":
            request = diagnose_request({symptom.id: symptom.severity for symptom in question.symptoms}, run, 1)
            diagnosis = _parse(Diagnosis, (yield "diagnose", request.wire()), report)
        vote = message.resolve(judgement, diagnosis)
        if vote is None or judgement is None:
            return []
        paths = judgement.supports if vote.stance == "for" else judgement.objections
        return [_with_evidence(vote, [f"kg:{judgement.graph[:12]}", *map(citation, paths)])]
    return without_graph([message])


def needs_graph(message: UnsentMessage) -> bool:
    """Return whether to ask the graph about a message."""
    return isinstance(message, Alternatives | TopicShares | GraphReview)


class PriorClient:
    """A client of the prior service on the bus, which limits the wait for a reply and logs each problem once."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._unavailable_until = 0.0
        self._reported: set[str] = set()

    async def consult(
        self,
        messages: Sequence[UnsentMessage],
        run: RunStarted | None,
        knobs: Mapping[str, Knob],
        in_flight: Sequence[str],
    ) -> PublishedMessages:
        """Return the messages to publish, in order: one plan per `Alternatives`."""
        if self._is_unavailable() or not any(map(needs_graph, messages)):
            return without_graph(messages)
        consultations = (consultation(message, run, knobs, in_flight, self._report) for message in messages)
        replies = await asyncio.gather(*(answer_requests_by_service(requests, self.ask) for requests in consultations))
        return [message for resolved in replies for message in resolved]

    async def ask(self, endpoint: str, request: bytes) -> bytes | None:
        """Return the reply, or None if this request fails or another one failed within RETRY_AFTER_S."""
        if self._is_unavailable():
            return None
        try:
            return await self._bus.request(names.kg(endpoint), request, REPLY_TIMEOUT_S)
        except BusError as error:
            self._unavailable_until = asyncio.get_running_loop().time() + RETRY_AFTER_S
            self._report(f"the knowledge graph does not answer: {error}")
            return None

    def _is_unavailable(self) -> bool:
        return asyncio.get_running_loop().time() < self._unavailable_until

    def _report(self, problem: str) -> None:
        if problem not in self._reported:
            self._reported.add(problem)
            log.warning("%s", problem)


def _parse(reply_type: type[_Reply], reply: bytes | None, report: Report) -> _Reply | None:
    """Parse a reply. Return None if it is missing or invalid."""
    try:
        return None if reply is None else reply_type.model_validate_json(reply)
    except ValidationError as error:
        report(f"the graph's reply is invalid, so votes are published without its sources: {error}")
        return None


def _with_evidence(vote: Vote, entries: Sequence[str]) -> Vote:
    """Return the vote with as many of the entries as fit into its limits."""
    for count in range(min(len(entries), MAX_EVIDENCE - len(vote.evidence)), 0, -1):
        longer = vote.model_copy(update={"evidence": (*vote.evidence, *entries[:count])})
        if len(longer.wire()) <= VOTE_BYTES - HEADER_BYTES:
            return longer
    return vote

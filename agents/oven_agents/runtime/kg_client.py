"""What the knowledge graph says of a proposal before it is published: which of several plans, sources for the vote, or
why not to vote.

The service may be away or late; then the vote goes out as it is, and of several plans the agent's own first. What the
graph bars, the mesh bars by the run's rules, no matter who votes.

What is asked, and what becomes of the answers, is one generator: it yields (endpoint, request) and is sent the reply,
or None. `consider` answers it from a function in this process, `Prior` over the bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from pydantic import ValidationError

from oven_agents.sdk.alternative_plans import (
    SYMPTOM,
    Alternatives,
    Plan,
    chosen,
    enquiry,
    phase,
    spoken,
)
from oven_agents.sdk.topic_shares import TopicShares
from oven_agents.sdk.window import Knob
from oven_core.bus.connection import Bus
from oven_core.bus.streams import VOTE_BYTES
from oven_core.errors import BusError
from oven_core.mesh.change_requirements import change
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.graph_requests import (
    Curriculum,
    Diagnosis,
    EvidencePath,
    Judgement,
    JudgeRequest,
    Symptom,
)
from oven_core.protocol.messages import AgentStatus, Message, RunStarted, Vote

log = logging.getLogger("oven.agent")

DEADLINE_S: Final = 0.25
"""Seconds that the service has for an answer: a vote that waits longer may miss its ballot."""
AWAY_S: Final = 5.0
"""How long a service that did not answer is left alone: an agent must not lose a deadline at every tick."""
ENTRIES: Final = 32
"""Entries of evidence that a vote may hold at most (`Vote.evidence`)."""
HEADERS: Final = 1024
"""Bytes of a vote's limit that are left to its headers."""

Said: TypeAlias = Vote | AgentStatus | Alert | Plan | Alternatives | TopicShares
Words: TypeAlias = list[Vote | AgentStatus | Alert]
Ask: TypeAlias = Callable[[str, bytes], bytes | None]
"""(endpoint, request) → reply; None: no one answered."""
Tell: TypeAlias = Callable[[str], None]
Asking: TypeAlias = Generator[tuple[str, bytes], bytes | None, Words]

_Answer = TypeVar("_Answer", bound=Message)


def question(vote: Vote, run: RunStarted, knobs: Mapping[str, Knob], in_flight: Sequence[str]) -> JudgeRequest:
    """What to ask of a proposal: its change with the direction, what was seen, and what the run can do."""
    knob = knobs.get(vote.actuator)
    seen = dict.fromkeys(entry.removeprefix(SYMPTOM) for entry in vote.evidence if entry.startswith(SYMPTOM))
    return JudgeRequest(
        phase=phase(run),
        changes=change(vote.actuator, knob.value if knob else None, vote.value),
        symptoms=tuple(Symptom(id=id_) for id_ in seen),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=tuple(metric.name for metric in run.metrics),
        held_out=any(metric.held_out for metric in run.metrics),
        in_flight=tuple(in_flight)[:64],
    )


def informed(vote: Vote, judgement: Judgement) -> Vote:
    """The vote with the graph's paths behind its own evidence, as many as the vote's limits leave room for."""
    found = [f"kg:{judgement.graph[:12]}"]
    found += [f"for: {cited(path)}" for path in judgement.supports]
    found += [f"against: {cited(path)}" for path in judgement.objections]
    return _with(vote, found)


def cited(path: EvidencePath) -> str:
    """ "loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; own-faults]": edges, grade, sources."""
    return f"{path.text} [{' '.join(path.edges)}; {path.grade}; {' '.join(path.sources)}]"


def barred(judgement: Judgement) -> str:
    """Why the change may not be made now; empty if it may."""
    return "; ".join(map(cited, judgement.objections)) or "no reason given" if judgement.verdict == "barred" else ""


def consider(
    said: Sequence[Said],
    run: RunStarted | None,
    knobs: Mapping[str, Knob],
    in_flight: Sequence[str],
    ask: Ask,
    tell: Tell = log.debug,
) -> Words:
    """`said` in its order: of alternatives one plan, proposals with their evidence, without what is barred. `tell` gets
    a line for what is not said, and for an answer that cannot be read."""
    words: Words = []
    for message in said:
        asking = considering(message, run, knobs, in_flight, tell)
        try:
            request = next(asking)
            while True:
                request = asking.send(ask(*request))
        except StopIteration as end:
            words += end.value
    return words


def considering(
    message: Said, run: RunStarted | None, knobs: Mapping[str, Knob], in_flight: Sequence[str], tell: Tell
) -> Asking:
    """What to ask about one message, and in the end what to say. A plan of which any part is barred is not said at all:
    a rollback without the cut that belongs to it only fails again."""
    if run is None or not asks(message):
        return spoken([message])
    if isinstance(message, Alternatives):
        diagnosis = _read(Diagnosis, (yield "diagnose", enquiry(message, run).wire()), tell)
        plan, paths = chosen(message, diagnosis)
        votes = [_with(vote, [f"chosen: {cited(path)}" for path in paths]) for vote in plan.votes]
    elif isinstance(message, Plan):
        votes = list(message.votes)
    elif isinstance(message, TopicShares):
        answer = _read(Curriculum, (yield "curriculum", message.question.wire()), tell)
        votes = [vote for vote in (message.decided(answer),) if vote is not None]
    else:
        votes = [vote for vote in (message,) if isinstance(vote, Vote)]
    words: Words = []
    for vote in votes:
        judgement = _read(Judgement, (yield "judge", question(vote, run, knobs, in_flight).wire()), tell)
        if judgement is not None and (why := barred(judgement)):
            tell(f"not proposed: {vote.actuator}: {why}")
            return []
        words.append(vote if judgement is None else informed(vote, judgement))
    return words


def asks(message: Said) -> bool:
    """Whether the graph has a say in it: statuses and answers to ballots go out as they are."""
    if isinstance(message, Vote):
        return message.stance == "propose"
    return isinstance(message, Plan | Alternatives | TopicShares)


class Prior:
    """The agent's side of the service: asks within a deadline, and says once what goes wrong."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._away_until = 0.0
        self._told: set[str] = set()

    async def considered(
        self,
        said: Sequence[Said],
        run: RunStarted | None,
        knobs: Mapping[str, Knob],
        in_flight: Sequence[str],
    ) -> Words:
        """As `consider`, over the bus, all messages at once."""
        if self._away() or not any(map(asks, said)):
            return spoken(said)
        each = (self._answered(considering(one, run, knobs, in_flight, self._tell)) for one in said)
        return [word for words in await asyncio.gather(*each) for word in words]

    async def _answered(self, asking: Asking) -> Words:
        try:
            request = next(asking)
            while True:
                request = asking.send(await self._ask(*request))
        except StopIteration as end:
            words: Words = end.value
            return words

    async def _ask(self, endpoint: str, request: bytes) -> bytes | None:
        if self._away():
            return None
        try:
            return await self._bus.request(names.kg(endpoint), request, DEADLINE_S)
        except BusError as error:
            self._away_until = asyncio.get_running_loop().time() + AWAY_S
            self._tell(f"votes go out without the graph's sources: {error}")
            return None

    def _away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.warning("%s", line)


def _read(kind: type[_Answer], reply: bytes | None, tell: Tell) -> _Answer | None:
    """The answer; None where there is none, or none that can be read."""
    try:
        return None if reply is None else kind.model_validate_json(reply)
    except ValidationError as error:
        tell(f"votes go out without the graph's sources: {error}")
        return None


def _with(vote: Vote, found: Sequence[str]) -> Vote:
    for room in range(min(len(found), ENTRIES - len(vote.evidence)), 0, -1):
        longer = vote.model_copy(update={"evidence": (*vote.evidence, *found[:room])})
        if len(longer.wire()) <= VOTE_BYTES - HEADERS:
            return longer
    return vote

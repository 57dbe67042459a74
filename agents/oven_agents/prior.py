"""What the knowledge graph says of a proposal before it is published: sources for the vote, or why not to vote.

The service may be away or late; then the vote goes out as it is. That changes no decision: what the graph bars, the
mesh bars by the run's rules, whoever votes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from oven_agents.knobs import Knob
from oven_controller import names
from oven_controller.bus import Bus
from oven_controller.errors import BusError
from oven_controller.mesh.needs import change
from oven_controller.messages import (
    AgentStatus,
    EvidencePath,
    Judgement,
    JudgeRequest,
    Phase,
    RunStarted,
    Symptom,
    Vote,
)
from oven_controller.streams import VOTE_BYTES

log = logging.getLogger("oven.agent")

DEADLINE_S: Final = 0.25
AWAY_S: Final = 5.0
"""How long a service that did not answer is left alone: an agent must not lose a deadline at every tick."""
SYMPTOM: Final = "symptom:"
"""Evidence "symptom:loss_spike" names a node of the graph."""
ENTRIES: Final = 32
HEADERS: Final = 1024
"""Bytes of a vote's limit that are left to its headers."""


def question(vote: Vote, run: RunStarted, knobs: Mapping[str, Knob], in_flight: Sequence[str]) -> JudgeRequest:
    """What to ask of a proposal: its change with the direction, what was seen, and what the run can do."""
    knob = knobs.get(vote.actuator)
    seen = dict.fromkeys(entry.removeprefix(SYMPTOM) for entry in vote.evidence if entry.startswith(SYMPTOM))
    metrics = tuple(metric.name for metric in run.metrics)
    phase: Phase = "grpo" if "reward" in metrics else ""
    return JudgeRequest(
        phase=phase,
        changes=change(vote.actuator, knob.value if knob else None, vote.value),
        symptoms=tuple(Symptom(id=id_) for id_ in seen),
        actuators=tuple(spec.name for spec in run.actuators),
        metrics=metrics,
        held_out=any(metric.held_out for metric in run.metrics),
        in_flight=tuple(in_flight)[:64],
    )


def informed(vote: Vote, judgement: Judgement) -> Vote:
    """The vote with the graph's paths behind its own evidence, as many as the vote's limits leave room for."""
    found = [f"kg:{judgement.graph[:12]}"]
    found += [f"for: {cited(path)}" for path in judgement.supports]
    found += [f"against: {cited(path)}" for path in judgement.objections]
    for room in range(min(len(found), ENTRIES - len(vote.evidence)), 0, -1):
        longer = vote.model_copy(update={"evidence": (*vote.evidence, *found[:room])})
        if len(longer.wire()) <= VOTE_BYTES - HEADERS:
            return longer
    return vote


def cited(path: EvidencePath) -> str:
    """ "loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; own-faults]": edges, grade, sources."""
    return f"{path.text} [{' '.join(path.edges)}; {path.grade}; {' '.join(path.sources)}]"


def barred(judgement: Judgement) -> str:
    """Why the change may not be made now; empty if it may."""
    return "; ".join(map(cited, judgement.objections)) or "no reason given" if judgement.verdict == "barred" else ""


Ask = Callable[[str, bytes], bytes | None]
"""Puts a request to an endpoint of the service; None: no answer, whatever the reason."""


def consider(
    said: Sequence[Vote | AgentStatus],
    run: RunStarted | None,
    knobs: Mapping[str, Knob],
    in_flight: Sequence[str],
    ask: Ask,
) -> list[Vote | AgentStatus]:
    """`said` in its order: proposals with their evidence, without those that are barred. Without an answer a vote goes
    out as it is."""
    considered: list[Vote | AgentStatus] = []
    for message in said:
        if run is not None and isinstance(message, Vote) and message.stance == "propose":
            answer = ask("judge", question(message, run, knobs, in_flight).wire())
            judgement = None if answer is None else Judgement.model_validate_json(answer)
            if judgement is not None and barred(judgement):
                continue
            message = message if judgement is None else informed(message, judgement)
        considered.append(message)
    return considered


class Prior:
    """The agent's side of the service: asks within a deadline, and says once what goes wrong."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._away_until = 0.0
        self._told: set[str] = set()

    async def considered(
        self,
        said: Sequence[Vote | AgentStatus],
        run: RunStarted | None,
        knobs: Mapping[str, Knob],
        in_flight: Sequence[str],
    ) -> list[Vote | AgentStatus]:
        """`said` in its order: proposals with their evidence, without those that are barred."""
        proposes = any(isinstance(message, Vote) and message.stance == "propose" for message in said)
        if not proposes or self._away():
            return list(said)

        async def one(message: Vote | AgentStatus) -> Vote | AgentStatus | None:
            if run is None or not isinstance(message, Vote) or message.stance != "propose":
                return message
            judgement = await self._ask(question(message, run, knobs, in_flight))
            if judgement is None:
                return message
            if why := barred(judgement):
                self._tell(f"not proposed: {message.actuator}: {why}")
                return None
            return informed(message, judgement)

        return [message for message in await asyncio.gather(*map(one, said)) if message is not None]

    async def _ask(self, request: JudgeRequest) -> Judgement | None:
        if self._away():
            return None
        try:
            answer = await self._bus.request(names.kg("judge"), request.wire(), DEADLINE_S)
            return Judgement.model_validate_json(answer)
        except (BusError, ValidationError) as error:
            self._away_until = asyncio.get_running_loop().time() + AWAY_S
            self._tell(f"votes go out without the graph's sources: {error}")
            return None

    def _away(self) -> bool:
        return asyncio.get_running_loop().time() < self._away_until

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            log.warning("%s", line)

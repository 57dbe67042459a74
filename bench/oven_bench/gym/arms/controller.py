"""The controller as an arm, in one process: all agents with the knowledge graph or without it, and single agents.

Nothing is tuned for the gym. The rules are the product's defaults with autonomy `auto`, and the agents are those that
are installed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, ClassVar, TypeAlias

from oven_bench.gym.closed_loop import ClosedLoop, Participant, participants
from oven_controller.stack.kg_rules import with_graph_rules
from oven_core.protocol.events import Event
from oven_core.protocol.graph_requests import GraphInfo, GraphInfoRequest
from oven_core.protocol.messages import Decision, Observation, Outcome, RunStarted
from oven_core.protocol.rules import Autonomy, Rules
from oven_kg.service.endpoints import load_prior_service
from oven_learner.link.link_interface import UnbuiltMessage, build_message
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter
from oven_learner.testing import FakeLink

Ask: TypeAlias = Callable[[str, bytes], bytes | None]
"""The prior service without a bus: (endpoint, request) → reply."""


@dataclass(frozen=True)
class MeshArm:
    """A mesh with the named agents (None: all that are installed), with or without the knowledge graph."""

    name: str
    agents: tuple[str, ...] | None = None
    with_graph: bool = False
    autonomy: Autonomy = "auto"
    keeps_best: ClassVar[bool] = True

    def link(self, run: str, rng: Random) -> LoopLink:
        """Raises UnknownNameError for an agent that is not installed."""
        ask = graph_service() if self.with_graph else None
        members = participants(self.agents, ask)

        def rules(announced: Rules) -> Rules:
            """The rules as `up` sets them: installed agents are trusted, and the graph adds its own rules."""
            trusting = announced.with_grants_for(member.name for member in members)
            is_alone = len(members) == 1  # no other agent can second its proposals
            changes = {"autonomy": self.autonomy, "evidence_kinds": 1 if is_alone else trusting.evidence_kinds}
            update = trusting.model_copy(update=changes)
            return update if ask is None else with_graph_rules(update, _graph_info(ask))

        return LoopLink(run, members, rules)


MESH = MeshArm("mesh")
MESH_WITH_GRAPH = MeshArm("mesh+kg", with_graph=True)


def single_agent(agent: str) -> MeshArm:
    """The controller with one agent and no graph, which shows whether all agents together beat the best one."""
    return MeshArm(f"agent.{agent}", (agent,))


@cache
def graph_service() -> Ask:
    """The prior service. Episodes of a process share it, because requests do not change it."""
    return load_prior_service()


def _graph_info(ask: Ask) -> GraphInfo:
    reply = ask("info", GraphInfoRequest().wire())
    assert reply is not None  # every prior service has this endpoint
    return GraphInfo.model_validate_json(reply)


class LoopLink(FakeLink):
    """A link whose other side is the whole controller: the real mesh and its participants, in this process.

    It decides on each message of the learner before the learner continues. A decision arrives at the next step
    boundary, as on a bus that is never late, so the run is in lockstep whether or not the client asks for it.
    """

    def __init__(
        self, run: str, participants: Iterable[Participant], rules: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """`rules` turns the rules that the client announces into those of the run."""
        super().__init__()
        self._loop = ClosedLoop(run, participants)
        self._rules = rules

    @property
    def events(self) -> Sequence[Event]:
        return self._loop.events

    def open(self) -> ResumeState:
        """The state that a restarted learner resumes from. Nothing is unanswered, because nothing is ever late."""
        messages = [event.body for event in self.events]
        started = next((message for message in reversed(messages) if isinstance(message, RunStarted)), None)
        if started is None:
            return ResumeState()
        tick = max((message.tick for message in messages if isinstance(message, Observation)), default=started.tick)
        decided_ids = frozenset(message.id for message in messages if isinstance(message, Decision))
        return ResumeState(started.incarnation, tick, len(messages), decided_ids=decided_ids, training=started.training)

    def send(self, unbuilt: UnbuiltMessage) -> None:
        message = build_message(unbuilt)
        if isinstance(message, RunStarted):
            message = message.model_copy(update={"rules": self._rules(message.rules)})
        self.incoming.extend(self._loop.send(message))

    def show(self, convert: SampleConverter) -> None:
        """Discard the sample: no agent reads it."""

    def outcomes(self) -> list[Any]:
        return [json.loads(event.data) for event in self.events if isinstance(event.body, Outcome)]

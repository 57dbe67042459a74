"""Several plans, of which one is said: the graph's best, the agent's own first without it, and never half of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.support import runs

from oven_agents import Agent, Alternatives, Knob, Plan, Window
from oven_agents.runtime.kg_client import PriorClient, answer_requests, consultation
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import UnsentMessage, offer, without_graph
from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.graph_requests import (
    DiagnoseRequest,
    Diagnosis,
    EvidencePath,
    Remedy,
)
from oven_core.protocol.messages import AgentStatus, BallotOpened, RunStarted, Vote

ROLLBACK_AND_SKIP, ROLLBACK_AND_CUT, ROLLBACK_ONLY = "rollback_and_skip", "rollback_and_cut", "rollback"
CHANGES = {
    ROLLBACK_AND_SKIP: {"run.rollback": 90.0, "data.skip": 100.0},
    ROLLBACK_AND_CUT: {"run.rollback": 90.0, "optimizer.lr_scale": 0.125},
    ROLLBACK_ONLY: {"run.rollback": 90.0},
}
PATH = EvidencePath(edges=("C001", "S016"), text="loss_spike ← CAUSES ← lr_too_high", grade="D", sources=("own",))


SPIKE = {"loss_spike": 0.7}


def alternatives(*remedies: str) -> Alternatives:
    plans = [
        Plan(
            remedy,
            tuple(
                Vote(actuator=name, stance="propose", value=value, tick=101, confidence=0.9, evidence=("a note",))
                for name, value in CHANGES[remedy].items()
            ),
        )
        for remedy in remedies or CHANGES
    ]
    made = offer(plans, SPIKE)
    assert made is not None
    return made


def diagnosis(**scores: float) -> Diagnosis:
    remedies = tuple(Remedy(id=id_, score=score, paths=(PATH,)) for id_, score in scores.items())
    return Diagnosis(graph="ab" * 32, remedies=remedies)


def knobs(run: RunStarted) -> dict[str, Knob]:
    return {spec.name: Knob(spec, spec.value) for spec in run.actuators}


class Graph:
    """Answers as the service does, from what it was told."""

    def __init__(self, diagnosis: Diagnosis | None) -> None:
        self.diagnosis = diagnosis
        self.requests: list[tuple[str, DiagnoseRequest]] = []

    def __call__(self, endpoint: str, request: bytes) -> bytes | None:
        assert endpoint == "diagnose", "a proposer does not ask for a judgement"
        self.requests.append((endpoint, DiagnoseRequest.model_validate_json(request)))
        return self.diagnosis.wire() if self.diagnosis else None


def words(offer: Alternatives, graph: Callable[[str, bytes], bytes | None]) -> list[Vote]:
    run = runs.pretraining()
    return [
        word
        for word in answer_requests(consultation(offer, run, knobs(run), (), print), graph)
        if isinstance(word, Vote)
    ]


def test_the_graphs_best_plan_is_proposed_with_its_reasons() -> None:
    graph = Graph(diagnosis(rollback_and_cut=0.9, rollback_and_skip=0.4, lower_beta=2.0))
    votes = words(alternatives(), graph)
    assert {vote.actuator: vote.value for vote in votes} == CHANGES[ROLLBACK_AND_CUT]
    assert votes[0].evidence[:3] == (
        "a note",
        "symptom:loss_spike",
        "chosen: loss_spike ← CAUSES ← lr_too_high [C001 S016; D; own]",
    )
    request = graph.requests[0][1]
    assert request.held_out and "data.skip" in request.actuators
    assert [(symptom.id, symptom.severity) for symptom in request.symptoms] == [("loss_spike", 0.7)]


@pytest.mark.parametrize("reply", [None, diagnosis(), diagnosis(lower_beta=2.0)], ids=["away", "empty", "another"])
def test_without_an_answer_the_agents_first_alternative_is_used(reply: Diagnosis | None) -> None:
    assert {vote.actuator: vote.value for vote in words(alternatives(), Graph(reply))} == CHANGES[ROLLBACK_AND_SKIP]


class Sees(Agent):
    moves = ("run.rollback", "data.skip", "optimizer.lr_scale")

    def vote(self, window: Window) -> Alternatives:
        return alternatives()


def test_while_part_of_a_plan_is_under_way_no_other_is_begun() -> None:
    session = Session(Sees(), "me")
    session.absorb(runs.pretraining())
    session.absorb(runs.seen(1, {"loss": 1.0}))
    assert Alternatives in [type(word) for word in session.react()]
    ballot = BallotOpened(
        id="1", actuator="data.skip", proposal=100.0, opened_by="me", tick=1, closes_at_tick=4, eligible=("me",)
    )
    session.absorb(ballot)
    session.absorb(runs.seen(2, {"loss": 1.0}))
    assert not [word for word in session.react() if isinstance(word, Alternatives)]


class Away(Bus):
    """The bus of a run whose graph does not answer."""

    def __init__(self) -> None:
        pass

    async def request(self, subject: str, data: bytes, timeout_s: float = 2.0) -> bytes:
        raise BusError(f"no one answers on {subject}")


def test_without_a_graph_on_the_bus_the_agents_first_alternative_is_used() -> None:
    run = runs.pretraining()
    messages: list[UnsentMessage] = [alternatives(), AgentStatus(state="done")]

    async def over_the_bus() -> list[Vote | AgentStatus | Alert]:
        return await PriorClient(Away()).consult(messages, run, knobs(run), ())

    assert asyncio.run(over_the_bus()) == without_graph(messages)

"""An agent's second remedy wins a trial and is kept: a real agent's session, mesh, client and a small training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from tests.support.gym_line import Line

from oven_agents import Agent, Alternatives, Plan, Window
from oven_agents.runtime.in_process import AgentParticipant
from oven_agents.sdk.alternative_plans import offer
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.episode import Branches, Training
from oven_bench.gym.fault import NOTHING
from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, Remedy
from oven_core.protocol.messages import Decision, Outcome, Receipt, Value, Vote
from oven_core.protocol.rules import Rules
from oven_core.protocol.trial_messages import TrialEnded, TrialStarted
from oven_kg.service.endpoints import answers
from oven_learner.client.client import OvenClient
from oven_learner.link.link_interface import Link
from oven_learner.rollback.in_memory import Snapshots
from oven_learner.testing import FakeLink, decision
from oven_runs.log.replay import replay

RATE, CLIP, SKIP = "optimizer.lr_scale", "grad.clip", "data.skip"
AT, STEPS = 20, 60
REMEDIES: Mapping[str, Mapping[str, Value]] = {
    "clip": {CLIP: 0.011},
    "cut": {RATE: 0.2},
    "cut_and_skip": {SKIP: 3.0, RATE: 0.5},
}


class Doctor(Agent):
    """Sees one symptom and knows several remedies for it, the worst first."""

    needs = ("loss",)
    moves = speciality = (RATE, CLIP, SKIP)
    order = tuple(REMEDIES)

    def vote(self, window: Window) -> Alternatives | None:
        if window.tick != AT:
            return None
        plans = [
            Plan(remedy, tuple(self._change(window, name, value) for name, value in REMEDIES[remedy].items()))
            for remedy in self.order
        ]
        return offer(plans, {"loss_spike": 0.8})

    def _change(self, window: Window, name: str, value: Value) -> Vote:
        return Vote(
            actuator=name, stance="propose", value=value, tick=window.tick, target="eval/loss", expected_change=-0.1,
            horizon=20, confidence=0.9, rationale="the loss jumped",
        )  # fmt: skip


def rules(announced: Rules) -> Rules:
    """Rates are compared as they stand, so that several fit."""
    update = {"trials": "all", "trial_share": 1.0, "trial_cooldown": 0, "trial_margin": 0.0, "max_factor": 1000.0}
    return announced.trusting(["doctor"]).model_copy(update={**update, "autonomy": "auto"})


def trained(link: Link) -> Line:
    """A line after all its steps, steered by what the link brings."""
    line = Line("pretraining", 3)
    training = Training(line, NOTHING, None)
    client = OvenClient(
        link,
        line.actuators,
        metrics=line.metrics,
        max_steps=STEPS,
        snapshots=Snapshots(training.take, training.restore, credit=math.inf),
        trials=Branches(training, line),
    )
    client.start()
    while client.step < STEPS:
        metrics = training.train_step()
        client.observe(training.step, metrics)
        client.poll()
    client.end_trial("the run ends")
    client.close("completed")
    return line


def bits(line: Line) -> list[float]:
    momentum = [line.optimizer.state[p]["momentum_buffer"] for p in line.model.parameters()]
    return [x for t in (*line.model.parameters(), *momentum) for x in t.detach().flatten().tolist()]


def direct(changes: Mapping[str, Value], at: int) -> Line:
    link = FakeLink()
    link.incoming.extend(
        decision(name, value, number=n, apply_at=at) for n, (name, value) in enumerate(changes.items())
    )
    return trained(link)


def test_the_second_remedy_wins_and_is_kept_bit_for_bit() -> None:
    link = LoopLink("line", [AgentParticipant("doctor", Doctor())], rules)
    line = trained(link)
    bodies = [event.body for event in link.events]
    (order,) = (body for body in bodies if isinstance(body, TrialStarted))
    (ended,) = (body for body in bodies if isinstance(body, TrialEnded))
    assert [arm.changes for arm in order.arms] == [{}, *REMEDIES.values()]
    gains = [arm.gain or 0.0 for arm in ended.arms]
    assert ended.status == "completed" and ended.kept == max(range(4), key=lambda n: gains[n]) >= 2, ended
    kept = order.arms[ended.kept]
    assert bits(line) == bits(direct(kept.changes, order.tick + 1))
    receipts = {body.decision_id: body.status for body in bodies if isinstance(body, Receipt)}
    assert {id_ for id_, status in receipts.items() if status == "applied"} == set(kept.decisions)
    assert len(receipts) == 4, "one of each decision"
    decided = {body.id: body for body in bodies if isinstance(body, Decision)}
    assert all(decided[id_].verdict == "tried" for id_ in receipts)
    measured = {body.decision_id: body for body in bodies if isinstance(body, Outcome) and body.measured}
    assert measured.keys() == receipts.keys() and all(one.lines[0].agent == "doctor" for one in measured.values())
    report = replay(link.events, "line")
    assert report.same and report.finished and (report.tried, report.adopted) == (4, len(kept.decisions))


class Graph:
    """Draws its answers as the service does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[DiagnoseRequest] = []
        self._answers = answers()

    def __call__(self, endpoint: str, request: bytes) -> bytes | None:
        answer = self._answers(endpoint, request)
        if endpoint != "diagnose" or answer is None:
            return answer
        self.asked.append(DiagnoseRequest.model_validate_json(request))
        scores = enumerate(sorted(REMEDIES, reverse=True))
        remedies = tuple(Remedy(id=id_, score=1.0 - 0.1 * place) for place, id_ in scores)
        return Diagnosis.model_validate_json(answer).model_copy(update={"remedies": remedies}).wire()


@pytest.fixture(scope="module")
def asked() -> tuple[Sequence[bytes], Graph]:
    graph = Graph()
    link = LoopLink("line", [AgentParticipant("doctor", Doctor(), graph)], rules)
    trained(link)
    return [event.data for event in link.events], graph


def test_arms_follow_the_graphs_order_and_the_same_run_asks_the_same(asked: tuple[Sequence[bytes], Graph]) -> None:
    logged, graph = asked
    again = LoopLink("line", [AgentParticipant("doctor", Doctor(), other := Graph())], rules)
    trained(again)
    (order,) = (event.body for event in again.events if isinstance(event.body, TrialStarted))
    assert [list(arm.changes) for arm in order.arms] == [[], [SKIP, RATE], [RATE], [CLIP]]
    assert graph.asked == other.asked
    steady = [data for data in logged if b"TrialEnded" not in data]  # that one has its seconds
    assert steady == [event.data for event in again.events if b"TrialEnded" not in event.data]

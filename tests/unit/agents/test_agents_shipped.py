"""Of every shipped agent: its votes can be scored, it is quiet without a reason, and a receipt resets its windows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pytest
from tests.support.installed import entry_points, installed
from tests.support.troubles import TICKS, TROUBLES, observations

from oven_agents.runtime.agent_loader import load
from oven_bench.gym.closed_loop import AgentParticipant
from oven_core.mesh.forecast import judging_metric
from oven_core.mesh.state import State
from oven_core.protocol.messages import AgentStatus, MetricSpec, Receipt, RunStarted, Value, Vote

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]
SHIPPED = sorted(entry_points()["oven.agents"])
ASKING = ("tuner", "author", "supervisor")
SILENT = ("rollback_undo", "lr_cooldown", "final_weights", "drift", "calibration_drift", "graph", "health", *ASKING)
SPEAK = [name for name in SHIPPED if name not in SILENT]
"""In a run in trouble in which nobody did anything yet; `rollback_undo` has its own tests
(test_agent_second_thoughts.py), as have `final_weights`, `drift` and `calibration_drift` (test_symptoms.py), and
`tuner`, `author` and `supervisor`, which speak in a run's process alone; `lr_cooldown`, `graph` and
`health` propose nothing."""


@pytest.fixture(autouse=True)
def _nobody_raises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """An agent that raises abstains, which would pass for having nothing to say."""
    yield
    assert not [record.getMessage() for record in caplog.get_records("call") if record.name == "oven.agent"]


AFTER = 50
"""Ticks after a receipt in which nothing may be said."""


def joined(name: str, trouble: str) -> tuple[AgentParticipant, str]:
    """The agent in that run, and why it cannot fire there; empty if it can."""
    agent = AgentParticipant(*load(name))
    agent.absorb(TROUBLES[trouble][0])
    statuses = [word for word in agent.react() if isinstance(word, AgentStatus) and word.state == "cannot_fire"]
    return agent, statuses[0].reason if statuses else ""


def proposals(agent: AgentParticipant) -> list[Vote]:
    return [word for word in agent.react() if isinstance(word, Vote) and word.stance == "propose"]


@cache
def proposed(name: str, trouble: str) -> tuple[Vote, ...]:
    """By tick; nothing of what it asks for is done."""
    agent, cannot = joined(name, trouble)
    votes: list[Vote] = []
    for observation in () if cannot else observations(trouble):
        agent.absorb(observation)
        votes += proposals(agent)
    return tuple(votes)


@pytest.mark.parametrize("name", SPEAK)
def test_every_proposal_can_be_scored(name: str) -> None:
    cases = [(trouble, vote) for trouble in TROUBLES for vote in proposed(name, trouble)]
    assert cases, f"{name} proposes nothing in any of these troubles: add one that it is for to troubles.py"
    for trouble, vote in cases:
        state = State()
        state.start(TROUBLES[trouble][0])
        label = f"{trouble}, {vote.actuator} at tick {vote.tick}: {vote.rationale}"
        if state.spec(vote.actuator).has_outcome:
            metric = judging_metric(state, vote.actuator, vote.target)
            assert metric is not None and metric.name == vote.target, f"{label}: not judged by {vote.target!r}"
            assert _promises(vote, metric), f"{label}: promises {vote.expected_change:g} of {metric.name}"
            assert vote.horizon > 0, label
        assert 0.5 < vote.confidence < 1, label  # even odds claim nothing, and nobody is certain
        assert vote.rationale, label


def _promises(vote: Vote, metric: MetricSpec) -> bool:
    """Whether it expects a change for the better."""
    gain = vote.expected_change * (1 if metric.better == "up" else -1)
    return math.isfinite(gain) and gain > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_no_agent_votes_on_a_healthy_run(name: str) -> None:
    healthy = [trouble for trouble in TROUBLES if trouble.endswith(".nothing")]
    assert len(healthy) == 2
    for trouble in healthy:
        assert not (votes := proposed(name, trouble)), f"{trouble}: {votes[0].rationale}"


@pytest.mark.parametrize("name", SPEAK)
def test_a_receipt_resets_its_windows(name: str) -> None:
    """What it asked for was done, and from then on all is well: nothing from before may make it speak again."""
    troubled = [trouble for trouble in TROUBLES if proposed(name, trouble)]
    assert troubled
    for trouble in troubled:
        first = proposed(name, trouble)[0].tick
        agent, _ = joined(name, trouble)
        for observation in observations(trouble, cured_at=first):
            agent.absorb(observation)
            if observation.tick == first:
                for n, vote in enumerate(proposals(agent)):
                    agent.absorb(_receipt(TROUBLES[trouble][0], vote, n))
            elif first < observation.tick <= first + AFTER and (votes := proposals(agent)):
                after = observation.tick - first
                pytest.fail(f"{trouble}, {after} ticks after its receipt: {votes[0].actuator}, {votes[0].rationale}")


def _receipt(run: RunStarted, vote: Vote, n: int) -> Receipt:
    before: Value = next(spec.value for spec in run.actuators if spec.name == vote.actuator)
    return Receipt(
        incarnation=1,
        n=TICKS + n,
        decision_id=f"{n:012d}-00",
        actuator=vote.actuator,
        status="applied",
        before=before,
        after=vote.value,
        tick=vote.tick,
        step=vote.tick,
    )

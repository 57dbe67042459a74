"""Of every shipped agent: its votes can be scored, it is quiet without a reason, and a receipt resets its windows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from tests.unit.installed import entry_points, installed
from tests.unit.troubles import TICKS, TROUBLES, observations

from oven_agents.loader import load
from oven_agents.participants import AgentParticipant
from oven_controller.mesh.state import State
from oven_controller.mesh.yardstick import INERT, judge
from oven_controller.messages import AgentStatus, MetricSpec, Observation, Receipt, RunStarted, Value, Vote

pytestmark = pytest.mark.usefixtures("installed")
__all__ = ["installed"]
SHIPPED = sorted(entry_points()["oven.agents"])


def joined(name: str, trouble: str) -> tuple[AgentParticipant, str]:
    """The agent in that run, and why it cannot fire there; empty if it can."""
    agent = AgentParticipant(*load(name))
    agent.absorb(TROUBLES[trouble][0])
    said = [word for word in agent.react() if isinstance(word, AgentStatus) and word.state == "cannot_fire"]
    return agent, said[0].reason if said else ""


def proposals(agent: AgentParticipant, observation: Observation) -> list[Vote]:
    agent.absorb(observation)
    return [word for word in agent.react() if isinstance(word, Vote) and word.stance == "propose"]


def proposed(name: str) -> Iterator[tuple[str, Vote]]:
    for trouble in TROUBLES:
        agent, cannot = joined(name, trouble)
        for observation in () if cannot else observations(trouble):
            yield from ((trouble, vote) for vote in proposals(agent, observation))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_proposal_can_be_scored(name: str) -> None:
    found = list(proposed(name))
    assert found, f"{name} proposes nothing in any of these troubles: add one that it is for to troubles.py"
    for trouble, vote in found:
        run = TROUBLES[trouble][0]
        state = State()
        state.start(run)
        told = f"{trouble}, {vote.actuator} at tick {vote.tick}: {vote.rationale}"
        if vote.actuator not in INERT:
            metric = judge(state, vote.actuator, vote.target)
            assert metric is not None and metric.name == vote.target, f"{told}: not judged by {vote.target!r}"
            assert _promises(vote, metric), f"{told}: promises {vote.expected_change:g} of {metric.name}"
            assert vote.horizon > 0, told
        assert 0.5 < vote.confidence < 1, told  # even odds claim nothing, and nobody is certain
        assert vote.rationale and any(entry.startswith("symptom:") for entry in vote.evidence), told


def _promises(vote: Vote, metric: MetricSpec) -> bool:
    """Whether it expects a change for the better."""
    gain = vote.expected_change * (1 if metric.better == "up" else -1)
    return math.isfinite(gain) and gain > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_where_nothing_is_wrong_nobody_speaks(name: str) -> None:
    healthy = [trouble for trouble in TROUBLES if trouble.endswith(".nothing")]
    assert len(healthy) == 2
    for trouble in healthy:
        agent, cannot = joined(name, trouble)
        said = [vote for observation in observations(trouble) for vote in proposals(agent, observation)]
        assert cannot or not said, f"{trouble}: {said[0].rationale}"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_receipt_resets_its_windows(name: str) -> None:
    """What it asked for was done, and from then on all is well: nothing from before may make it speak again."""
    cured = 0
    for trouble, (run, _) in TROUBLES.items():
        agent, cannot = joined(name, trouble)
        first = next((at for at, _ in _speaks(agent, trouble)), None) if not cannot else None
        if first is None:
            continue
        again, _ = joined(name, trouble)
        for observation in observations(trouble, cured_at=first):
            votes = proposals(again, observation)
            if observation.tick == first:
                for n, vote in enumerate(votes):
                    again.absorb(_receipt(run, vote, n))
                cured += 1
            elif observation.tick > first:
                assert not votes, f"{trouble}, {observation.tick - first} ticks after its receipt: {votes[0].rationale}"
    assert cured


def _speaks(agent: AgentParticipant, trouble: str) -> Iterator[tuple[int, list[Vote]]]:
    for observation in observations(trouble):
        if observation.tick < TICKS and (votes := proposals(agent, observation)):
            yield observation.tick, votes


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

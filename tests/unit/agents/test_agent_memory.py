"""An agent whose process gets no more memory: it lets go of what it hoards, and takes no part any more."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from oven_agents import Agent, Window, memory_limit
from oven_agents.sdk.agent_session import Session
from oven_core.protocol.messages import ActuatorSpec, AgentStatus, Observation, RunStarted


class Hoards(Agent):
    moves = ("grad.clip",)

    def __init__(self) -> None:
        self.hits = [0]

    def vote(self, window: Window) -> None:
        raise MemoryError


def started(incarnation: int) -> RunStarted:
    clip = ActuatorSpec(name="grad.clip", kind="scalar", low=0, high=10, value=1.0)
    return RunStarted(incarnation=incarnation, n=0, recipe="x", training=str(incarnation), actuators=(clip,))


def seen(incarnation: int, tick: int) -> Observation:
    return Observation(incarnation=incarnation, n=tick, tick=tick, step=tick, progress=0, metrics={"loss": 1.0})


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (
            200 * memory_limit.BYTES_PER_MB,
            "reached the limit of 200 MB on the memory of an agent process (agents_memory_mb)",
        ),
        (resource.RLIM_INFINITY, "agent hog ran out of memory on this machine"),
    ],
)
def test_an_agent_out_of_memory_says_so_once_and_stays_out_of_later_trainings(
    limit: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    agent = Hoards()
    session = Session(agent, "hog")
    session.absorb(started(1))
    session.absorb(seen(1, 1))
    statuses: list[Any] = [status for status in session.react() if isinstance(status, AgentStatus)]
    assert [status.state for status in statuses][:2] == ["joined", "failed"]
    assert words in statuses[1].reason and not vars(agent)
    assert session.problems == [statuses[1].reason]
    session.absorb(started(2))
    session.absorb(seen(2, 1))
    again = [(status.state, status.reason) for status in session.react() if isinstance(status, AgentStatus)]
    assert ("failed", statuses[1].reason) in again and len(session.problems) == 1

"""What the mesh and the agents make of recorded logs, three ways.

`replay`: the mesh alone over everything that was said. `backtest`: one agent at a time over what the learner said, open
loop, without a prior. `again`: all agents, the prior and the mesh over what the learner said, in one process; the logs
of gym episodes were made like this, and come out as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.golden import recorded, said
from tests.golden.store import Json, Limits, digest, digest_of

from oven_agents.backtest.backtest import Backtest, Findings
from oven_agents.runtime.in_process import participants
from oven_agents.runtime.loader import load
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import LearnerMessage
from oven_kg.service.endpoints import answers
from oven_runs.log.closed_loop import ClosedLoop

FILE = "logs.json"


def documents(limits: Limits, agents: Iterable[str]) -> Iterator[tuple[str, Json]]:
    """The file, and what belongs there. `agents`: their golden names."""
    yield FILE, {name: of(name, agents) for name in recorded.stored() if limits.takes(name)}


def limited(document: Json, limits: Limits) -> Json:
    """The part of a stored document that `documents` makes under these limits."""
    return {name: log for name, log in document.items() if limits.takes(name)}


def of(name: str, agents: Iterable[str]) -> dict[str, Json]:
    """Everything of one log."""
    log = recorded.events(name)
    return {
        "learner": said.by_type(said.of(event) for event in log if isinstance(event.body, LearnerMessage)),
        "replay": replayed(log),
        "again": again(log),
        "backtest": {agent: backtested(log, agent) for agent in agents},
    }


def replayed(log: Sequence[Event]) -> dict[str, Json]:
    """The mesh over all that was said."""
    mesh = Mesh(recorded.run_of(log))
    outputs = [json.loads(output.data) for event in log for output in mesh.step(event)]
    return {
        "decisions": said.decisions(outputs),
        "outputs": said.by_type(outputs),
        "ignored": dict(sorted(mesh.state.counters.items())),
        "tick": mesh.state.tick,
        "ended": mesh.state.ended,
    }


def again(log: Sequence[Event]) -> dict[str, Json]:
    """The mesh, all agents and the prior over what the learner said."""
    ask = answers(shuffled=None)
    loop = ClosedLoop(recorded.run_of(log), participants(None, ask))
    for event in log:
        if isinstance(event.body, LearnerMessage):
            loop.hear(event.body)
    messages = [said.of(event) for event in loop.events]
    return {
        "decisions": said.decisions(messages),
        "messages": said.by_type(messages),
        "order": said.in_order(loop.events),
    }


def backtested(log: Sequence[Event], agent: str) -> dict[str, Json]:
    """One agent over what the learner said. Raises RuntimeError when its code raised."""
    test = Backtest(load(agent)[1], agent, recorded.run_of(log))
    for event in log:
        test.take(event)
    found = test.findings()
    if found.problems:
        raise RuntimeError(f"{agent} raised: {found.problems[0]}")
    words: dict[str, Json] = {"votes": [said.short(_vote(one)) for one in found.said]} if found.said else {}
    if found.said:
        words["whole"] = digest_of(_whole(found))
    if found.cannot_fire:
        words["cannot_fire"] = digest(found.cannot_fire)
    if found.notices:
        words["notices"] = digest_of([[tick, text] for tick, text in found.notices])
    return words | {"same_votes": found.same_votes, "divergences": len(found.divergences)}


def _vote(one: Any) -> dict[str, Any]:
    vote: dict[str, Any] = one.vote.model_dump(mode="json")
    return vote


def _whole(found: Findings) -> list[Json]:
    """Every vote with all that it says, and what was decided on it."""
    rows = []
    for one in found.said:
        verdict = None if one.decision is None else said.short(one.decision.model_dump(mode="json"))
        rows.append([said.picked(_vote(one)), verdict, one.carried_out, one.happened])
    return rows

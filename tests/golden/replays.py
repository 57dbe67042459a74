"""What the mesh and the agents make of recorded logs, three ways.

`replay`: the mesh alone over everything that was said. `backtest`: one agent at a time over what the learner said, open
loop, without a prior. `again`: all agents, the prior and the mesh over what the learner said, in one process; the logs
of gym episodes were made like this, and come out as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.golden import recorded, wire
from tests.golden.store import Json, Limits, digest, digest_of

from oven_agents.review.backtest import Backtest, RecordedOutcome
from oven_agents.review.open_loop_replay import CastVote
from oven_agents.runtime.agent_loader import load
from oven_bench.gym.closed_loop import ClosedLoop, participants
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.events import Event
from oven_core.protocol.messages import LearnerMessage
from oven_kg.service.endpoints import load_prior_service

FILE = "logs.json"


def documents(limits: Limits, agents: Iterable[str]) -> Iterator[tuple[str, Json]]:
    """The file, and what belongs there. `agents`: their golden names."""
    yield FILE, {name: replays_of(name, agents) for name in recorded.stored() if limits.takes(name)}


def limited(document: Json, limits: Limits) -> Json:
    """The part of a stored document that `documents` makes under these limits."""
    return {name: log for name, log in document.items() if limits.takes(name)}


def replays_of(name: str, agents: Iterable[str]) -> dict[str, Json]:
    """Everything of one log."""
    log = recorded.events(name)
    return {
        "learner": wire.by_type(wire.fields_of(event) for event in log if isinstance(event.body, LearnerMessage)),
        "replay": replayed(log),
        "again": again(log),
        "backtest": {agent: backtested(log, agent) for agent in agents},
    }


def replayed(log: Sequence[Event]) -> dict[str, Json]:
    """The mesh over all that was said."""
    mesh = Mesh(recorded.run_of(log))
    outputs = [json.loads(output.data) for event in log for output in mesh.step(event)]
    return {
        "decisions": wire.decisions(outputs),
        "outputs": wire.by_type(outputs),
        "ignored": dict(sorted(mesh.state.counters.items())),
        "tick": mesh.state.tick,
        "ended": mesh.state.ended,
    }


def again(log: Sequence[Event]) -> dict[str, Json]:
    """The mesh, all agents and the prior over what the learner said."""
    ask = load_prior_service()
    loop = ClosedLoop(recorded.run_of(log), participants(None, ask))
    for event in log:
        if isinstance(event.body, LearnerMessage):
            loop.send(event.body)
    messages = [wire.fields_of(event) for event in loop.events]
    return {
        "decisions": wire.decisions(messages),
        "messages": wire.by_type(messages),
        "order": wire.in_order(loop.events),
    }


def backtested(log: Sequence[Event], agent: str) -> dict[str, Json]:
    """One agent over what the learner said. Raises RuntimeError when its code raised."""
    test = Backtest(load(agent)[1], agent, recorded.run_of(log))
    for event in log:
        test.add(event)
    report = test.report()
    if report.problems:
        raise RuntimeError(f"{agent} raised: {report.problems[0]}")
    votes = [cast.vote.model_dump(mode="json") for cast in test.replay.votes]
    golden: dict[str, Json] = {}
    if votes:
        golden["votes"] = [wire.short(vote) for vote in votes]
        golden["whole"] = digest_of([_whole(*row) for row in zip(votes, *zip(*test.votes, strict=True), strict=True)])
    if report.cannot_fire:
        golden["cannot_fire"] = digest(report.cannot_fire)
    if report.notices:
        golden["notices"] = digest_of([[notice.tick, notice.text] for notice in report.notices])
    return golden | {"same_votes": report.same_votes, "divergences": report.divergences}


def _whole(vote: dict[str, Any], cast: CastVote, outcome: RecordedOutcome) -> Json:
    """Every field of a vote, and what was decided on it."""
    decision = None if cast.decision is None else wire.short(cast.decision.model_dump(mode="json"))
    return [wire.picked(vote), decision, outcome.carried_out, outcome.change]

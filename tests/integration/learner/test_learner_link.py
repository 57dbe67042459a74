"""The link against a real server: everything once and in order, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.learner_side import (
    RUN,
    Server,
    decide,
    decision,
    keep_observing,
    learner_on,
    off_loop,
    polled,
    serving,
    until,
)

from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.security.credentials import Credentials
from oven_learner.link.process_link import ProcessLink

ON = Subjects(RUN)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


def link(server: Server) -> ProcessLink:
    return ProcessLink(server.url, RUN, Credentials.load(server.creds("learner")))


async def logged(server: Server, tick: int) -> None:
    """Until the log has so much; what the link itself says of that is half a second old."""
    await server.logged(lambda event: isinstance(event.body, Observation) and event.body.tick >= tick)


async def test_the_older_of_two_learners_of_one_run_reports_it_and_applies_no_decision(
    nats: Server, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = [1.0], [1.0]
    first, second = learner_on(link(nats), old), learner_on(link(nats), new)
    await off_loop(first.start)
    await nats.logged(lambda event: isinstance(event.body, RunStarted))
    await off_loop(second.start)
    async with nats.bus("mesh") as mesh:
        await until(lambda: "another learner has started run 'r' (incarnation 2)" in caplog.text)
        await decide(mesh, decision(1, value=3.0))
        second.observe(1, {})
        await until(lambda: polled(second) and new == [3.0])
        await decide(mesh, decision(2, value=4.0))
        await until(lambda: polled(second) and new == [4.0])
    first.observe(1, {})
    first.poll()
    assert old == [1.0] and not first.stopping, "its training goes on as it was"
    assert caplog.text.count("another learner has started") == 1
    assert await off_loop(second.close, "completed")
    assert await off_loop(first.close, "completed")


async def test_a_decision_in_the_log_is_applied_and_answered(nats: Server) -> None:
    rate = [1.0]
    learner = learner_on(link(nats), rate)
    await off_loop(learner.start)
    async with nats.bus("mesh") as mesh, nats.bus("admin") as admin:
        # Core NATS beside the log: the same bytes, but no decision.
        await admin.publish("oven.r.decision", decision(1).wire())
        await admin.publish(f"_INBOX_.learner.{'x' * 22}", decision(2).wire())
        await decide(mesh, decision(3, value=3.0))
    await until(lambda: polled(learner) and rate[0] != 1.0)
    assert rate == [3.0]
    assert await off_loop(learner.close, "completed")
    receipts = [body for body in await nats.bodies() if isinstance(body, Receipt)]
    assert [(r.decision_id, r.status, r.before, r.after) for r in receipts] == [(decision(3).id, "applied", 1.0, 3.0)]


async def test_a_decision_that_is_not_adopted_does_not_reach_the_training_thread(nats: Server) -> None:
    process = link(nats)
    learner = learner_on(process)
    await off_loop(learner.start)
    async with nats.bus("mesh") as mesh:
        for number, verdict in enumerate(("rejected", "advised", "adopted")):
            await decide(mesh, decision(number).model_copy(update={"verdict": verdict}))
    received: list[Any] = []

    def decision_arrived() -> bool:
        received.append(process.receive())
        return received[-1] is not None

    await until(decision_arrived)
    assert received[-1].verdict == "adopted" and received[-1].id == decision(2).id
    assert await off_loop(learner.close, "completed")


async def test_a_later_incarnation_continues_where_the_log_ends(nats: Server) -> None:
    rate, died = [1.0], link(nats)
    first = learner_on(died, rate)
    await off_loop(first.start)
    async with nats.bus("mesh") as mesh:
        for step in range(1, 4):
            first.observe(step, {"loss": 1.0})
        await decide(mesh, decision(10, value=4.0))
        await until(lambda: polled(first) and rate[0] == 4.0)
        await decide(mesh, decision(11, value=5.0, apply_at=5000))
        assert await off_loop(died.close, 10)  # it dies: nothing is announced
        await decide(mesh, decision(12, value=6.0))

    fresh = [1.0]
    second = learner_on(link(nats), fresh)
    past = await off_loop(second.start)
    assert (past.incarnation, past.tick, past.values) == (1, 3, {"1": {"rate": 4.0}})
    assert [d.id for d in past.unanswered_decisions] == [decision(11).id, decision(12).id]
    assert fresh == [4.0], "what had been set is set again"
    second.observe(4, {"loss": 1.0})
    second.poll()
    assert await off_loop(second.close, "completed")
    messages = [body for body in await nats.bodies() if not isinstance(body, Decision)]
    mine = [body for body in messages if body.incarnation == 2]  # type: ignore[attr-defined]
    assert [type(body) for body in mine] == [RunStarted, Receipt, Receipt, Observation, RunEnded]
    receipts = [body for body in mine if isinstance(body, Receipt)]
    assert [(r.decision_id, r.status) for r in receipts] == [(decision(n).id, "unknown") for n in (11, 12)]
    assert [body.tick for body in mine if isinstance(body, Observation)] == [4]
    assert fresh == [4.0], "an unanswered decision of the past is never carried out"


async def test_a_killed_server_loses_no_message(nats: Server) -> None:
    rate, process = [1.0], link(nats)
    learner = learner_on(process, rate)
    await off_loop(learner.start)
    stop = asyncio.Event()
    training = asyncio.create_task(keep_observing(learner, 1, stop))

    async def one_life(life: int) -> None:
        await logged(nats, learner.tick + 100)
        await nats.kill()
        was = learner.tick
        await until(lambda: learner.tick > was + 100)
        assert process.unsent, "what cannot be sent waits"
        await nats.start()
        await logged(nats, learner.tick)
        async with nats.bus("mesh") as mesh:
            await decide(mesh, decision(life, value=1.0 + life))
        await until(lambda: rate[0] == 1.0 + life)

    await one_life(1)
    await one_life(2)
    stop.set()
    last = await training
    assert await off_loop(learner.close, "completed")
    messages = [body for body in await nats.bodies() if not isinstance(body, Decision)]
    assert [body.n for body in messages] == list(range(1, len(messages) + 1))  # type: ignore[attr-defined]
    assert [body.step for body in messages if isinstance(body, Observation)] == list(range(1, last + 1))
    assert [r.status for r in messages if isinstance(r, Receipt)] == ["applied", "applied"]
    assert process.dropped_count == 0


async def test_a_frozen_server_loses_no_message(nats: Server) -> None:
    """It neither answers nor hangs up; when it is killed in that state and started again, the learner is back."""
    process = link(nats)
    learner = learner_on(process)
    await off_loop(learner.start)
    stop = asyncio.Event()
    training = asyncio.create_task(keep_observing(learner, 1, stop))
    await logged(nats, learner.tick + 100)
    nats.freeze(True)
    was = learner.tick
    await until(lambda: learner.tick > was + 400)
    nats.freeze(False)
    await logged(nats, learner.tick)
    nats.freeze(True)
    await until(lambda: process.unsent > 100)
    await nats.kill()
    await nats.start()
    await logged(nats, learner.tick)
    stop.set()
    last = await training
    assert await off_loop(learner.close, "completed")
    messages = await nats.bodies()
    assert [body.n for body in messages] == list(range(1, len(messages) + 1))  # type: ignore[attr-defined]
    assert [body.step for body in messages if isinstance(body, Observation)] == list(range(1, last + 1))


async def test_operators_commands_are_read_from_the_log(nats: Server) -> None:
    learner = learner_on(link(nats))
    await off_loop(learner.start)
    await nats.logged(lambda event: isinstance(event.body, RunStarted))
    async with nats.bus() as operator:
        await operator.append(ON.operator("ann"), OperatorCommand(id="1", action="stop", reason="enough").wire())
    await until(lambda: polled(learner) and learner.stopping)
    assert learner.stop_reason == "enough"
    assert await off_loop(learner.close, "stopped")


async def test_a_missing_server_at_the_end_does_not_delay_the_learner(nats: Server) -> None:
    process = link(nats)
    learner = learner_on(process)
    await off_loop(learner.start)
    await nats.kill()
    learner.observe(1, {"loss": 1.0})
    assert not await off_loop(learner.close, "completed", timeout_s=0.5)
    assert not psutil.pid_exists(process.pid or 0)


async def test_what_cannot_be_sent_does_not_block_the_rest(nats: Server) -> None:
    learner = learner_on(link(nats))
    await off_loop(learner.start)
    learner.observe(1, {f"metric/{n}": 1 / 3 for n in range(20_000)})
    learner.observe(2, {"loss": 1.0})
    assert await off_loop(learner.close, "completed")
    assert [body.step for body in await nats.bodies() if isinstance(body, Observation)] == [2]

"""BusLink against a real server: everything once and in order, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sized
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.learner_side import RUN, Server, serving, until

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, RefusedError
from oven_controller.protocol.messages import Decision, Observation, OperatorCommand, Receipt, RunEnded, RunStarted
from oven_controller.protocol.names import Subjects
from oven_controller.security.credentials import Credentials
from oven_controller.server.embedded import free_port
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.link.bus_link import BusLink

ON = Subjects(RUN)
T = TypeVar("T")


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


def link(server: Server) -> BusLink:
    return BusLink(server.url, RUN, Credentials.load(server.creds("learner")))


def client(server: Server, rate: list[float] | None = None) -> OvenClient:
    knob = [1.0] if rate is None else rate
    actuators = Actuators()
    actuators.scalar("rate", lambda: knob[0], lambda v: knob.__setitem__(0, v), low=0.1, high=10)
    return OvenClient(link(server), actuators, max_steps=1000)


def decision(number: int, value: float = 2.0, apply_at: int = 1) -> Decision:
    return Decision(
        id=f"{number:012d}-00", ballot="b", actuator="rate", verdict="adopted", value=value, reason="", tally=(),
        tick=0, apply_at_tick=apply_at, expires_at_tick=100_000,
    )  # fmt: skip


async def decide(bus: Bus, made: Decision) -> None:
    """As a mesh would: in a run that began."""
    async for _ in bus.read(RUN, subjects=[ON.run]):
        break
    await bus.append(ON.decision(made.id), made.wire(), once=True)


def polled(learner: OvenClient) -> bool:
    learner.poll()
    return True


def waiting(learner: OvenClient) -> Sized:
    """What is not in the log yet."""
    assert isinstance(learner._link, BusLink)
    return learner._link._outbox


def ended() -> bool:
    return not any(thread.name == "oven-link" for thread in threading.enumerate())


async def off_loop(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """As the training thread would: not on the loop that the test's own bus lives on."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def test_messages_arrive_once_in_order_and_numbered(nats: Server) -> None:
    learner = client(nats)
    await off_loop(learner.start)
    for step in range(1, 201):
        learner.observe(step, {"loss": 1 / step, "grad_norm": float("nan")})
        learner.poll()
    assert await off_loop(learner.close, "completed")
    said = await nats.bodies()
    assert [type(body) for body in said] == [RunStarted] + [Observation] * 200 + [RunEnded]
    assert [(body.incarnation, body.n) for body in said] == [(1, n) for n in range(1, 203)]  # type: ignore[attr-defined]
    first = said[1]
    assert isinstance(first, Observation) and first.metrics["grad_norm"] != first.metrics["grad_norm"]


async def test_of_two_learners_under_one_name_the_older_says_so_and_turns_no_knob(
    nats: Server, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = [1.0], [1.0]
    first, second = client(nats, old), client(nats, new)
    await off_loop(first.start)
    await nats.logged(lambda event: isinstance(event.body, RunStarted))
    await off_loop(second.start)
    async with nats.bus("mesh") as mesh:
        await until(lambda: "another learner has begun run 'r' (incarnation 2)" in caplog.text)
        await decide(mesh, decision(1, value=3.0))
        second.observe(1, {})
        await until(lambda: polled(second) and new == [3.0])
        await decide(mesh, decision(2, value=4.0))
        await until(lambda: polled(second) and new == [4.0])
    first.observe(1, {})
    first.poll()
    assert old == [1.0] and not first.stopping, "its training goes on as it was"
    assert caplog.text.count("another learner has begun") == 1
    assert await off_loop(second.close, "completed")
    assert await off_loop(first.close, "completed")


async def test_a_decision_in_the_log_is_applied_and_answered(nats: Server) -> None:
    rate = [1.0]
    learner = client(nats, rate)
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


async def test_a_decision_that_nobody_carries_out_does_not_reach_the_training_thread(nats: Server) -> None:
    learner = client(nats)
    await off_loop(learner.start)
    async with nats.bus("mesh") as mesh:
        for number, verdict in enumerate(("rejected", "advised", "withheld", "adopted")):
            await decide(mesh, decision(number).model_copy(update={"verdict": verdict}))
    received: list[Any] = []

    def heard() -> bool:
        received.append(learner._link.receive())
        return received[-1] is not None

    await until(heard)
    assert received[-1].verdict == "adopted" and received[-1].id == decision(3).id
    assert await off_loop(learner.close, "completed")


async def test_a_later_incarnation_goes_on_where_the_log_ends(nats: Server) -> None:
    rate = [1.0]
    first = client(nats, rate)
    await off_loop(first.start)
    async with nats.bus("mesh") as mesh:
        for step in range(1, 4):
            first.observe(step, {"loss": 1.0})
        await decide(mesh, decision(10, value=4.0))
        await until(lambda: polled(first) and rate[0] == 4.0)
        await decide(mesh, decision(11, value=5.0, apply_at=5000))
        assert await off_loop(first._link.close, 10)  # it dies: nothing is announced
        await decide(mesh, decision(12, value=6.0))

    fresh = [1.0]
    second = client(nats, fresh)
    past = await off_loop(second.start)
    assert (past.incarnation, past.tick, past.values) == (1, 3, {"1": {"rate": 4.0}})
    assert [d.id for d in past.unanswered] == [decision(11).id, decision(12).id]
    assert fresh == [4.0], "what had been set is set again"
    second.observe(4, {"loss": 1.0})
    second.poll()
    assert await off_loop(second.close, "completed")
    said = [body for body in await nats.bodies() if not isinstance(body, Decision)]
    mine = [body for body in said if body.incarnation == 2]  # type: ignore[attr-defined]
    assert [type(body) for body in mine] == [RunStarted, Receipt, Receipt, Observation, RunEnded]
    receipts = [body for body in mine if isinstance(body, Receipt)]
    assert [(r.decision_id, r.status) for r in receipts] == [(decision(n).id, "unknown") for n in (11, 12)]
    assert [body.tick for body in mine if isinstance(body, Observation)] == [4]
    assert fresh == [4.0], "an unanswered decision of the past is never carried out"


async def keep_observing(learner: OvenClient, first: int, stop: asyncio.Event) -> int:
    """Like a training loop that takes 2 ms a step, on a thread of its own."""
    step = first

    def train() -> None:
        nonlocal step
        for _ in range(25):
            learner.observe(step, {"loss": float(step)})
            learner.poll()
            step += 1

    while not stop.is_set():
        await asyncio.to_thread(train)
        await asyncio.sleep(0.05)
    return step - 1


async def test_a_killed_server_costs_nothing_that_was_said(nats: Server) -> None:
    rate = [1.0]
    learner = client(nats, rate)
    await off_loop(learner.start)
    stop = asyncio.Event()
    training = asyncio.create_task(keep_observing(learner, 1, stop))
    sent = waiting(learner)

    async def one_life(life: int) -> None:
        await until(lambda: learner.tick > 100 and not sent)
        await nats.kill()
        was = learner.tick
        await until(lambda: learner.tick > was + 100)
        assert sent, "what cannot be sent waits"
        await nats.start()
        await until(lambda: not sent)
        async with nats.bus("mesh") as mesh:
            await decide(mesh, decision(life, value=1.0 + life))
        await until(lambda: rate[0] == 1.0 + life)

    await one_life(1)
    await one_life(2)
    stop.set()
    last = await training
    assert await off_loop(learner.close, "completed")
    said = [body for body in await nats.bodies() if not isinstance(body, Decision)]
    assert [body.n for body in said] == list(range(1, len(said) + 1))  # type: ignore[attr-defined]
    assert [body.step for body in said if isinstance(body, Observation)] == list(range(1, last + 1))
    assert [r.status for r in said if isinstance(r, Receipt)] == ["applied", "applied"]
    assert learner._link.dropped == 0


async def test_a_frozen_server_is_outlived(nats: Server) -> None:
    """It neither answers nor hangs up; when it is killed in that state and started again, the learner is back."""
    learner = client(nats)
    await off_loop(learner.start)
    stop = asyncio.Event()
    training = asyncio.create_task(keep_observing(learner, 1, stop))
    sent = waiting(learner)
    await until(lambda: learner.tick > 100 and not sent)
    nats.freeze(True)
    was = learner.tick
    await until(lambda: learner.tick > was + 400)
    nats.freeze(False)
    await until(lambda: not sent)
    nats.freeze(True)
    await until(lambda: len(sent) > 100)
    await nats.kill()
    await nats.start()
    await until(lambda: not sent)
    stop.set()
    last = await training
    assert await off_loop(learner.close, "completed")
    said = await nats.bodies()
    assert [body.n for body in said] == list(range(1, len(said) + 1))  # type: ignore[attr-defined]
    assert [body.step for body in said if isinstance(body, Observation)] == list(range(1, last + 1))


async def test_an_operator_is_heard_from_the_log(nats: Server) -> None:
    learner = client(nats)
    await off_loop(learner.start)
    await nats.logged(lambda event: isinstance(event.body, RunStarted))
    async with nats.bus() as operator:
        await operator.append(ON.operator("ann"), OperatorCommand(id="1", action="stop", reason="enough").wire())
    await until(lambda: polled(learner) and learner.stopping)
    assert learner.stopping == "enough"
    assert await off_loop(learner.close, "stopped")


async def test_a_connection_closed_for_good_is_made_anew(nats: Server) -> None:
    """nats-py closes itself on some of the server's errors and never comes back by itself."""
    rate = [1.0]
    learner = client(nats, rate)
    opened: list[tuple[Bus, asyncio.AbstractEventLoop]] = []
    real = Bus.open

    async def remember(*args: Any, **kwargs: Any) -> Bus:
        opened.append((await real(*args, **kwargs), asyncio.get_running_loop()))
        return opened[-1][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bus, "open", remember)
        await off_loop(learner.start)
        bus, loop = opened[0]
        asyncio.run_coroutine_threadsafe(bus.client.close(), loop)
        await until(lambda: len(opened) == 2)
        learner.observe(1, {"loss": 1.0})
        async with nats.bus("mesh") as mesh:
            await decide(mesh, decision(1))
        await until(lambda: polled(learner) and rate[0] == 2.0)
        assert await off_loop(learner.close, "completed")
    assert [type(b) for b in await nats.bodies() if not isinstance(b, Decision)] == [
        RunStarted, Observation, Receipt, RunEnded
    ]  # fmt: skip


async def test_a_call_that_never_comes_back_costs_a_connection_and_nothing_else(
    nats: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nats-py's publish does on a frozen peer: it ignores its cancellation."""
    monkeypatch.setattr("oven_learner.link.bus_link.TURN_S", 0.01)
    real, stuck = Bus.append, list[Bus]()

    async def append(bus: Bus, *args: Any, **kwargs: Any) -> int:
        if not stuck:
            stuck.append(bus)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        assert bus is not stuck[0]
        return await real(bus, *args, **kwargs)

    monkeypatch.setattr(Bus, "append", append)
    learner = client(nats)
    await off_loop(learner.start)
    learner.observe(1, {"loss": 1.0})
    await until(lambda: not waiting(learner))
    monkeypatch.undo()
    learner.close("completed", timeout_s=5)
    assert [type(body) for body in await nats.bodies()] == [RunStarted, Observation, RunEnded]


async def test_what_cannot_be_sent_does_not_stand_in_the_way(nats: Server) -> None:
    learner = client(nats)
    await off_loop(learner.start)
    learner.observe(1, {"loss": "high"})  # type: ignore[dict-item]
    learner.observe(2, {f"metric/{n}": 1 / 3 for n in range(20_000)})
    learner.observe(3, {"loss": 1.0})
    assert await off_loop(learner.close, "completed")
    assert [body.step for body in await nats.bodies() if isinstance(body, Observation)] == [3]


async def test_while_the_bus_is_away_the_oldest_observations_go_and_are_counted(nats: Server) -> None:
    learner = client(nats)
    assert isinstance(learner._link, BusLink)
    learner._link._outbox._kept_bytes = 50_000
    await off_loop(learner.start)
    sent = waiting(learner)
    await until(lambda: not sent)
    await nats.kill()
    for step in range(1, 501):
        learner.observe(step, {"loss": 1.0})
    learner._said(learner.actuators.apply("rate", 2.0), "rate", decision_id=decision(1).id)
    await nats.start()
    assert await off_loop(learner.close, "completed", timeout_s=60)
    said = await nats.bodies()
    steps = [body.step for body in said if isinstance(body, Observation)]
    assert steps == list(range(501 - len(steps), 501)) and 50 < len(steps) < 200
    assert sum(isinstance(body, Receipt) for body in said) == 1
    assert learner._link.dropped == 500 - len(steps)


async def test_no_server_and_wrong_credentials_are_errors_at_the_start(nats: Server) -> None:
    nobody = BusLink(f"nats://127.0.0.1:{free_port()}", RUN, None)
    with pytest.raises(BusError, match="no NATS server answers"):
        await off_loop(nobody.open)
    stranger = BusLink(nats.url, RUN, Credentials.new("learner"))
    with pytest.raises(RefusedError, match="refused the credentials"):
        await off_loop(stranger.open)
    missing = BusLink(nats.url, "other", Credentials.load(nats.creds("admin")))
    with pytest.raises(BusError, match="'other' cannot be read"):
        await off_loop(missing.open)


async def test_a_server_that_is_gone_at_the_end_does_not_hold_the_learner_up(nats: Server) -> None:
    learner = client(nats)
    await off_loop(learner.start)
    await nats.kill()
    learner.observe(1, {"loss": 1.0})
    assert not await off_loop(learner.close, "completed", timeout_s=0.5)
    await until(ended)

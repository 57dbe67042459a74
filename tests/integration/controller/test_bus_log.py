"""The bus and the two streams on a real server: appending, reading, and what each role may not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.log_client import AlreadyLoggedError
from oven_core.errors import BusError, NameInUseError
from oven_core.protocol.codec import Malformed
from oven_core.protocol.history_requests import HistoryRequest
from oven_core.protocol.messages import AgentStatus, Observation, Vote
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_runs.access.log_recovery import complete_log
from oven_runs.access.log_sources import exported_events
from oven_runs.server.embedded_server import EmbeddedServer

ON = Subjects("r")


@pytest.fixture
async def admin(server: EmbeddedServer) -> AsyncIterator[Bus]:
    async with connected(server, "admin") as bus:
        await streams.create(bus.jetstream, "r")
        yield bus


def connected(server: EmbeddedServer, name: str):  # type: ignore[no-untyped-def]
    return Bus.connect(server.url, Credentials.load(server.folder.creds / f"{name}.nk"))


def observation(n: int) -> bytes:
    return Observation(incarnation=1, n=n, tick=n, step=n, progress=0.0, metrics={"loss": 1 / (n + 1)}).wire()


def vote(confidence: float = 0.5) -> bytes:
    return Vote(actuator="optimizer.lr_scale", stance="propose", value=2.0, tick=1, confidence=confidence).wire()


async def take(bus: Bus, count: int, after: int = 0) -> list[str]:
    subjects: list[str] = []
    async for event in bus.read("r", after=after):
        subjects.append(event.subject)
        if len(subjects) == count:
            break
    return subjects


async def refused(bus: Bus, times: int) -> None:
    """Until the server has refused so often. It answers in order, so that after a ping all refusals have come; the
    client hands them on in tasks of their own."""
    await bus.flush()
    async with asyncio.timeout(60):
        while sum("ermissions violation" in error for error in bus.errors) < times:
            await asyncio.sleep(0)
    assert len(bus.errors) == times, bus.errors


async def test_what_is_appended_is_read_in_order_from_any_place(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "learner") as learner:
        for n in range(5):
            assert await learner.append(ON.observation, observation(n), message_id=f"1-{n}") == n + 1
        assert await learner.append(ON.observation, observation(4), message_id="1-4") == 5  # the same message again
        assert await learner.head("r") == 5
        events = [event async for event in learner.read("r", after=2, until=5)]
    assert [event.seq for event in events] == [3, 4, 5]
    assert [event.data for event in events] == [observation(n) for n in (2, 3, 4)]
    with pytest.raises(NameInUseError, match="--resume"):
        await streams.create(admin.jetstream, "r")


@pytest.mark.parametrize("subjects", [None, [ON.observation]])
async def test_a_reader_does_not_stay_with_a_consumer_that_stands_still(
    admin: Bus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, subjects: list[str] | None
) -> None:
    """One that is paused sends its heartbeats and no event, as one does that is left on the far side of a cut."""
    monkeypatch.setattr("oven_core.bus.log_reader.HEAD_CHECK_HEARTBEATS", 1)
    async with connected(server, "learner") as learner:
        await learner.append(ON.observation, observation(0))
        log = learner.read("r", subjects=subjects)
        assert (await anext(log)).seq == 1
        (consumer,) = await admin.jetstream.consumers_info("OVEN-r")
        await admin.jetstream.pause_consumer("OVEN-r", consumer.name, "2100-01-01T00:00:00Z")
        await learner.append(ON.receipt, b"{}")
        await learner.append(ON.observation, observation(1))
        async with asyncio.timeout(60):
            rest = [(await anext(log)).seq for _ in range(1 if subjects else 2)]
        await log.aclose()
    assert rest == ([3] if subjects else [2, 3])


async def test_one_decision_enters_once(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "mesh") as mesh:
        assert await mesh.append(ON.decision("000000000001-00"), b"{}", once=True) == 1
        with pytest.raises(AlreadyLoggedError):
            await mesh.append(ON.decision("000000000001-00"), b"{}", once=True)
        assert await mesh.head("r") == 1


async def test_votes_reach_the_log_under_their_authors_name(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "lr") as agent:
        await agent.publish(ON.agent("lr"), AgentStatus(state="joined").wire())
        await agent.publish(ON.vote("lr"), vote())
        await agent.publish(ON.vote("lr"), b"not a vote")
        await agent.flush()
    assert await take(admin, 3) == [ON.agent("lr"), ON.vote("lr"), ON.vote("lr")]
    events = [event async for event in admin.read("r", until=3)]
    assert [event.author for event in events] == ["lr"] * 3
    assert isinstance(events[2].body, Malformed)


@pytest.mark.parametrize(
    ("who", "subjects"),
    [
        (
            "lr",
            [
                ON.decision("000000000001-00"),
                ON.vote("curriculum"),
                ON.agent("curriculum"),
                ON.observation,
                ON.receipt,
                ON.run,
            ],
        ),
        ("lr", [ON.operator("lr"), ON.ballot("b"), ON.step(1), "$JS.API.INFO", "$JS.API.STREAM.INFO.OVEN-r"]),
        ("lr", ["$JS.API.CONSUMER.CREATE.OVEN-r", "$JS.API.DIRECT.GET.OVEN-r", "_INBOX_.learner.1"]),
        ("monitor", [ON.decision("000000000001-00"), ON.vote("lr"), ON.operator("monitor"), "$JS.API.INFO"]),
        ("operator", [ON.decision("000000000001-00"), ON.receipt, ON.operator("somebody"), "$JS.API.INFO"]),
        ("history", [ON.decision("000000000001-00"), ON.vote("lr"), ON.receipt]),
        ("learner", [ON.decision("000000000001-00"), ON.vote("lr"), "$JS.API.STREAM.DELETE.OVEN-r"]),
        ("mesh", [ON.vote("lr"), ON.receipt, ON.observation, "$JS.API.STREAM.PURGE.OVEN-r"]),
    ],
)
async def test_what_a_role_may_not_publish(admin: Bus, server: EmbeddedServer, who: str, subjects: list[str]) -> None:
    async with connected(server, who) as bus:
        for subject in subjects:
            await bus.publish(subject, b"{}")
        await refused(bus, len(subjects))
    assert await admin.head("r") == 0


async def test_an_agent_cannot_listen_where_it_does_not_belong(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "lr") as agent:

        async def hear(_message: object) -> None: ...

        for subject in (ON.vote("*"), ON.operator("*"), "_INBOX_.learner.>", ">"):
            await agent.subscribe(subject, hear)
        await refused(agent, 4)


@pytest.mark.parametrize("subject", [ON.history, ON.all, "oven.*.history"])
async def test_a_reader_of_everything_cannot_intercept_requests(
    admin: Bus, server: EmbeddedServer, subject: str
) -> None:
    """Requests to history go to one of the replicas' queue; whoever else joined it would swallow some."""
    swallowed: list[object] = []

    async def swallow(message: object) -> None:
        swallowed.append(message)

    async with connected(server, "history") as history, connected(server, "monitor") as monitor:
        await serve_history(history, "r")
        await monitor.subscribe(subject, swallow, queue="history")
        await monitor.flush()
        for _ in range(20):
            await admin.request(ON.history, HistoryRequest(limit=1).wire(), 0.5)
    assert not swallowed


async def test_an_agent_has_no_way_to_the_log_but_history(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "lr") as agent:
        with pytest.raises(BusError):
            await agent.head("r")
        with pytest.raises(BusError):
            await agent.append(ON.decision("000000000001-00"), b"{}", once=True)
    assert await admin.head("r") == 0


async def test_an_operator_gets_its_sequence_without_the_logs_api(admin: Bus, server: EmbeddedServer) -> None:
    async with connected(server, "operator") as operator:
        assert await operator.append(ON.operator("operator"), b"{}", message_id="a") == 1
        assert await operator.append(ON.operator("operator"), b"{}", message_id="a") == 1


async def test_the_log_cannot_be_shortened(admin: Bus, server: EmbeddedServer) -> None:
    await admin.append(ON.run, b"{}")
    for attempt in (admin.jetstream.delete_msg("OVEN-r", 1), admin.jetstream.purge_stream("OVEN-r")):
        with pytest.raises(Exception, match=r"not permitted"):
            await attempt
    assert await admin.head("r") == 1


async def test_an_export_holds_the_bytes_that_were_stored(admin: Bus, server: EmbeddedServer, tmp_path) -> None:  # type: ignore[no-untyped-def]
    from oven_runs.home.run_folder import Home

    folder = Home(tmp_path / "home").create("r", "toy")
    stored = [observation(0), b'{"v":1, "type":"Observation", \r\n"unknown": [1e-05]}', b"\xff"]
    for data in stored:
        await admin.append(ON.observation, data)
    warnings: list[str] = []
    await complete_log(admin, folder, warnings.append)
    events = list(exported_events(folder))
    assert len(events) == 3 and not warnings
    assert events[0].data == stored[0]
    assert [type(event.body).__name__ for event in events] == ["Observation", "Malformed", "Malformed"]
    assert not list(folder.path.glob("*.partial"))

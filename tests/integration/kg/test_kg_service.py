"""The prior service on a real server, with the permissions of its role, and an agent's process that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import ROOT

from oven_agents import Vote
from oven_agents.runtime.agent_host import host
from oven_agents.runtime.kg_client import RETRY_AFTER_S
from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.graph import Graph
from oven_controller.stack.kg_rules import request_graph_info
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import (
    DiagnoseRequest,
    Diagnosis,
    GraphInfoRequest,
    Judgement,
    JudgeRequest,
    Symptom,
)
from oven_core.protocol.messages import ActuatorSpec, AgentStatus, BallotOpened, MetricSpec, Observation, RunStarted
from oven_core.protocol.rules import Rules
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService
from oven_kg.service.service_process import NAME, run_service
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

# nats-py's micro service asks for utcnow, which Python 3.12 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")

ON = names.Subjects("r")
LR, MIX = "optimizer.lr_scale", "data.mixture"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    folder = ServerFolder(tmp_path / "nats", "r")
    for role in ("admin", "history", "kg", "monitor"):
        folder.add_user(role, role)
    folder.add_user("agent", "lr")
    folder.add_user("agent", "graph")
    started = await EmbeddedServer.start(folder, tmp_path / "nats-server.log")
    yield started
    await started.stop()


def key(server: EmbeddedServer, name: str) -> Credentials:
    return Credentials.load(server.folder.creds / f"{name}.nk")


@contextlib.asynccontextmanager
async def connected(server: EmbeddedServer, name: str) -> AsyncIterator[Bus]:
    async with Bus.connect(server.url, key(server, name)) as bus:
        yield bus


@contextlib.asynccontextmanager
async def service(server: EmbeddedServer, name: str = "kg") -> AsyncIterator[Bus]:
    async with connected(server, name) as bus, run_service(bus, PriorService(load())):
        yield bus


def judged() -> bytes:
    return JudgeRequest(changes=f"{LR}:up", symptoms=(Symptom(id="loss_spike"),)).wire()


async def test_it_answers_agents_monitors_and_the_stack(server: EmbeddedServer) -> None:
    async with service(server) as own, connected(server, "lr") as agent, connected(server, "monitor") as monitor:
        judgement = Judgement.model_validate_json(await agent.request(names.kg("judge"), judged()))
        assert judgement.verdict == "object" and judgement.graph == load().sha
        request = DiagnoseRequest(symptoms=(Symptom(id="policy_collapse"),), phase="grpo")
        diagnosis = Diagnosis.model_validate_json(await monitor.request(names.kg("diagnose"), request.wire()))
        assert diagnosis.remedies[0].id == "rollback_and_cut"
        async with connected(server, "admin") as admin:
            assert await request_graph_info(admin) == load().info()
            ping = json.loads(await admin.request(f"$SRV.PING.{NAME}", b""))
            assert ping["metadata"] == {"graph": load().sha}
            stats = json.loads(await admin.request(f"$SRV.STATS.{NAME}", b""))
            counts = {endpoint["subject"]: endpoint["num_requests"] for endpoint in stats["endpoints"]}
            once = {names.kg("diagnose"): 1, names.kg("judge"): 1, names.kg("info"): 1}
            assert {subject: count for subject, count in counts.items() if count} == once
        assert own.errors == [], "the role's permissions are enough"


@pytest.mark.parametrize(
    ("endpoint", "data", "words"),
    [
        ("judge", b"", "not a JudgeRequest: Invalid JSON"),
        ("judge", b"\xff\x00{", "not a JudgeRequest"),
        ("judge", b"{}", "not a JudgeRequest: changes: Field required"),
        ("judge", judged().replace(b'"v":1', b'"v":2'), "not a JudgeRequest: v: Input should be 1"),
        ("judge", GraphInfoRequest().wire(), "not a JudgeRequest: type: Input should be 'JudgeRequest'"),
        ("diagnose", b'{"symptoms": [7]}', "not a DiagnoseRequest: symptoms.0"),
        ("diagnose", b'{"symptoms": []}', "not a DiagnoseRequest: symptoms: Tuple should have at least 1 item"),
        ("diagnose", b'{"symptoms": [{"id": "loss_spike", "severity": "NaN"}]}', "symptoms.0.severity"),
        ("info", b"[" * 5000, "not a GraphInfoRequest"),
    ],
)
async def test_a_malformed_request_is_answered_with_an_error(
    server: EmbeddedServer, endpoint: str, data: bytes, words: str
) -> None:
    async with service(server), connected(server, "lr") as agent:
        with pytest.raises(BusError, match=rf"oven\.kg\.{endpoint} refused the request: ") as caught:
            await agent.request(names.kg(endpoint), data)
        assert words in str(caught.value)
        assert await agent.request(names.kg("judge"), judged()), "and it goes on answering"


@pytest.mark.parametrize("role", ["kg", "admin"])
async def test_it_writes_to_inboxes_only(server: EmbeddedServer, role: str, caplog: pytest.LogCaptureFixture) -> None:
    """With its own rights, and with those of an administrator: the check is its own."""
    messages: list[bytes] = []

    async def hear(message: Any) -> None:
        messages.append(message.data)

    async with service(server, role), connected(server, "lr") as agent, connected(server, "monitor") as monitor:
        await monitor.subscribe(ON.all, hear)
        await monitor.flush()
        for data in (judged(), b"nonsense"):
            await agent.client.publish(names.kg("judge"), data, reply=ON.decision("1"))
        await agent.client.publish(names.kg("judge"), judged())
        assert await agent.request(names.kg("judge"), judged()), "requests are answered in their order"
        await monitor.flush()
    assert messages == []
    assert caplog.text.count("ignored a request on oven.kg.judge with the reply subject") == 3


async def test_it_answers_after_a_restart_of_the_server(server: EmbeddedServer, tmp_path: Path) -> None:
    async with service(server), connected(server, "lr") as agent:
        assert await agent.request(names.kg("judge"), judged())
        await server.stop()
        again = await EmbeddedServer.start(server.folder, tmp_path / "again.log", server.port)
        try:
            assert await answered(agent, "judge", judged())
        finally:
            await again.stop()


async def answered(bus: Bus, endpoint: str, data: bytes) -> bytes:
    """As soon as somebody answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await bus.request(names.kg(endpoint), data, 0.5)
            except BusError:
                await asyncio.sleep(0.02)


async def test_the_process_ends_cleanly(server: EmbeddedServer, tmp_path: Path) -> None:
    path = os.pathsep.join(str(ROOT / name) for name in ("controller", "kg"))
    env = os.environ | {"PYTHONPATH": path, "OVEN_URL": server.url, "OVEN_CREDS": str(server.folder.creds / "kg.nk")}
    code = "import sys; from oven_kg.service.service_process import main; sys.exit(main([]))"
    log = tmp_path / "kg.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=env, stdout=out, stderr=out)
    try:
        async with connected(server, "admin") as admin:
            await answered(admin, "info", GraphInfoRequest().wire())
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await process.wait() == 0, log.read_text()
            with pytest.raises(BusError, match=r"nothing answers on oven\.kg\.info"):
                await request_graph_info(admin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert load().sha[:12] in log.read_text() and "Traceback" not in log.read_text()


def started(*metrics: MetricSpec) -> RunStarted:
    knobs = (
        ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0),
        ActuatorSpec(name=MIX, kind="simplex", choices=("a", "b"), value={"a": 0.5, "b": 0.5}),
    )
    metrics = (MetricSpec(name="loss"), *metrics)
    return RunStarted(incarnation=1, n=0, recipe="x", actuators=knobs, metrics=metrics, lockstep=True)


async def reviews(server: EmbeddedServer, run: RunStarted, rounds: int) -> list[list[Vote]]:
    """Open two ballots at each of so many ticks. Return what the process of the graph's voice publishes, by tick."""
    votes_by_tick: list[list[Vote]] = []

    async def open_ballots(bus: Bus) -> None:
        tick = len(votes_by_tick) + 1
        votes_by_tick.append([])
        await observe(bus, tick)
        for index, (actuator, value) in enumerate(((LR, 0.5), (MIX, {"a": 0.9, "b": 0.1}))):
            ballot = BallotOpened(
                id=f"{tick:012d}-{index:02d}", actuator=actuator, proposal=value, opened_by="lr", tick=tick,
                closes_at_tick=tick + 3, eligible=("graph", "lr"), evidence=("symptom:loss_spike",),
            )  # fmt: skip
            await bus.append(ON.ballot(ballot.id), ballot.wire())

    async with connected(server, "admin") as admin, connected(server, "history") as history:
        await streams.create(admin.jetstream, "r")
        await serve_history(history, "r")
        hosting = asyncio.create_task(host([Session(Graph(), "graph")], server.url, "r", key(server, "graph")))
        try:
            async with asyncio.timeout(60):
                async for event in admin.read("r"):
                    match event.body:
                        case AgentStatus(state="joined") if event.seq == 1:
                            await admin.append(ON.run, run.wire())
                        case Vote() as vote:
                            votes_by_tick[-1].append(vote)
                        case RunStarted():
                            await open_ballots(admin)
                        case AgentStatus(state="done", seen=seen) if seen == f"{len(votes_by_tick):012d}-01":
                            if len(votes_by_tick) == rounds:
                                return votes_by_tick
                            await open_ballots(admin)
        finally:
            hosting.cancel()
            await asyncio.wait({hosting})
    raise AssertionError("the log came to an end")


async def observe(bus: Bus, tick: int) -> None:
    seen = Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics={"loss": 1.0})
    await bus.append(ON.observation, seen.wire())


async def test_the_graphs_vote_carries_its_paths(server: EmbeddedServer) -> None:
    async with service(server):
        [votes] = await reviews(server, started(MetricSpec(name="eval/loss", held_out=True)), 1)
    [cut] = [vote for vote in votes if vote.actuator == LR]
    assert cut.stance == "for" and "most likely cause: " in cut.rationale
    assert cut.evidence[:2] == ("signal:graph:", f"kg:{load().sha[:12]}")
    assert cut.evidence[2].startswith("loss_spike ← CAUSES ← lr_too_high ← SOLVES ← lower_lr [C001 S001; D; ")


async def test_a_barred_change_gets_a_veto(server: EmbeddedServer) -> None:
    async with service(server):
        [votes] = await reviews(server, started(), 1)
    [veto] = [vote for vote in votes if vote.actuator == MIX]
    assert veto.stance == "against" and veto.confidence >= Rules().veto_confidence
    assert "rebalance_levels → REQUIRES → held_out" in veto.rationale


@pytest.mark.parametrize("silent", [False, True], ids=["away", "silent"])
async def test_without_the_service_the_graph_abstains(
    server: EmbeddedServer, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    requests: list[bytes] = []

    async def ignore(message: Any) -> None:
        requests.append(message.data)

    caplog.set_level(logging.INFO)
    async with connected(server, "admin") as other_bus:
        if silent:
            await other_bus.subscribe(names.kg("judge"), ignore)
            await other_bus.flush()
        began = asyncio.get_running_loop().time()
        votes_by_tick = await reviews(server, started(), 3)
        took = asyncio.get_running_loop().time() - began
    assert votes_by_tick == [[], [], []]
    assert caplog.text.count("the knowledge graph does not answer") == 1
    if silent and took < RETRY_AFTER_S:
        assert 1 <= len(requests) <= 2, "asked at the first tick, and left alone after that"

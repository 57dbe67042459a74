"""What was forged with every right on the server, and without the key, changes nothing anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import RUN, Process, Server, serving, until

from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    MetricSpec,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_core.replica import replica_process
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring, load_keys
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.access import log_recovery, log_sources
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.replay import replay
from oven_runs.operator.operator_client import execute_command

ON = Subjects(RUN)
RULES = Rules(autonomy="auto", window_ticks=2, cooldown_ticks=0, newcomers="full", evidence_kinds=1)
PROPOSER = '''
"""Asks for one change, at tick 3, and says how much it has seen."""
from oven_agents import Agent

class Proposer(Agent):
    moves = ("rate",)

    def vote(self, window):
        ticks = [observation.tick for observation in window.observations]
        if not ticks or ticks[-1] < 3:
            return None
        return window.propose("rate", 2.0, confidence=0.9, why=f"saw {len(ticks)} up to {ticks[-1]}")
'''
FORGED = Decision(
    id="000000000777-00", ballot="b", actuator="rate", verdict="adopted", value=9.0, reason="", tally=(),
    tick=1, apply_at_tick=1, expires_at_tick=100_000,
)  # fmt: skip


@dataclass
class Run:
    folder: RunFolder
    server: Server
    pin: str
    keys: dict[str, str]

    def learner(self, rate: list[float], keys: dict[str, str] | None = None) -> OvenClient:
        credentials = Credentials.load(self.server.creds("learner"))
        link = ProcessLink(self.server.url, RUN, credentials, pin=self.pin)
        actuators = Actuators()
        actuators.scalar("rate", lambda: rate[0], lambda v: rate.__setitem__(0, v), low=0.1, high=10)
        learner_keys = self.keys if keys is None else keys
        return OvenClient(
            link, actuators, max_steps=100, rules=RULES, metrics=(MetricSpec(name="loss"),), keys=learner_keys
        )

    @contextlib.asynccontextmanager
    async def mesh(self) -> AsyncIterator[asyncio.Task[None]]:
        async with self.server.bus("mesh") as bus, self.server.bus("history") as history:
            await serve_history(history, RUN)
            serving = asyncio.create_task(replica_process.serve(bus, RUN, self.pin))
            try:
                yield serving
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    async def forge(self, subject: str, body: bytes, signed: bool = True) -> int:
        """Everything that the server lets an administrator do, and a signature of the wrong key."""
        async with self.server.bus("admin") as admin:
            admin.signer = admin.signer if signed else None
            seq: int = await admin.append(subject, body)
            return seq

    async def verified(self) -> list[Event]:
        return list(map(Keyring(self.pin).verify, await self.server.events()))

    async def until(self, wanted: Callable[[Event], Any]) -> None:
        keyring = Keyring(self.pin)
        await self.server.logged(lambda event: wanted(keyring.verify(event)))


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    folder = Home(tmp_path / "home").create(RUN, "toy")
    for role in ("operator", "monitor"):
        folder.add_user(role, role)
    async with serving(folder.path, ("proposer",)) as server:
        folder.write_info(replace(folder.info(), url=server.url, port=server.port))
        pin = folder.pin()
        assert pin is not None
        yield Run(folder, server, pin, load_keys(server.files.creds / "keys.json"))


def faults(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.subject, event.body.fault) for event in events if isinstance(event.body, Malformed)]


async def test_what_an_administrator_forges_changes_nothing_anywhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "proposer.py").write_text(PROPOSER)
    rate = [1.0]
    learner = run.learner(rate)
    await asyncio.to_thread(learner.start)
    env = run.server.env("proposer") | {"OVEN_LEARNER_KEY": run.pin}
    module = ["-P", "-m", "oven_controller.stack.run_process", "agent", str(tmp_path / "proposer.py")]
    async with run.mesh() as mesh:
        agent = Process(module, env, tmp_path / "agent.log")
        try:
            await run.until(lambda event: isinstance(event.body, AgentStatus))
            seen = Observation(incarnation=1, n=2, tick=60, step=60, progress=0.6, metrics={"loss": 1.0})
            acknowledgement = json.dumps({"stream": "OVEN-r", "seq": 7}).encode()
            await run.forge(ON.decision(FORGED.id), FORGED.wire())
            await run.forge(ON.decision("000000000778-00"), FORGED.wire(), signed=False)
            await run.forge(ON.decision("000000000779-00"), acknowledgement)
            await run.forge(ON.observation, seen.wire())
            await run.forge(ON.operator("operator"), OperatorCommand(id="c", action="stop").wire())
            forged_receipt = Receipt(
                incarnation=1, n=3, decision_id=FORGED.id, actuator="rate", status="applied", before=1, after=9, tick=1,
                step=1,
            )  # fmt: skip
            await run.forge(ON.receipt, forged_receipt.wire())
            for step in (1, 2, 3):
                learner.observe(step, {"loss": 1.0})
            await run.until(lambda event: isinstance(event.body, Vote) and event.body.rationale == "saw 3 up to 3")
            for step in (4, 5, 6):
                learner.observe(step, {"loss": 1.0})
            # The real parts believe each other: this is no deafness.
            await run.until(lambda event: isinstance(event.body, Decision) and event.body.verdict == "adopted")

            def polled() -> bool:
                learner.poll()
                return rate[0] != 1.0

            await until(polled)
            assert rate == [2.0] and not learner.stopping
            assert not mesh.done()
            assert await asyncio.to_thread(learner.close, "completed")
            # A monitor that follows the run while it is up.
            with run.folder.hold():
                followed = []
                async for event in LocalRun(run.folder).follow():
                    followed.append(event)
                    if isinstance(event.body, RunEnded):
                        break
        finally:
            agent.kill()
    expected = [
        (ON.decision(FORGED.id), "signature"),
        (ON.decision("000000000778-00"), "unsigned"),
        (ON.decision("000000000779-00"), "malformed"),
        (ON.observation, "signature"),
        (ON.operator("operator"), "signature"),
        (ON.receipt, "signature"),
    ]
    assert faults(followed) == expected
    logged = await run.verified()
    assert faults(logged) == expected
    async with run.server.bus() as admin:
        await log_recovery.complete_log(admin, run.folder, print)
    again = [event async for event in LocalRun(run.folder).events()]
    assert [(event.seq, event.subject, event.body) for event in again] == [
        (event.seq, event.subject, event.body) for event in logged
    ]
    for log in (logged, again):
        report = replay(log, RUN)
        assert report.same and report.adopted >= 1
        counted = {name: n for name, n in report.counters.items() if name.startswith(("unsigned", "signature"))}
        assert counted == {
            "signature.decision": 1, "unsigned.decision": 1, "signature.observation": 1, "signature.operator": 1,
            "signature.receipt": 1,
        }  # fmt: skip
        assert report.counters["malformed.decision"] == 3


async def said_by_hand(run: Run) -> tuple[str, Decision]:
    """A log whose mesh has not run yet, and the decision that it is going to make."""
    knob = ActuatorSpec(name="rate", kind="scalar", scale="log", low=0.1, high=10, value=1.0)
    async with run.server.bus("learner") as learner, run.server.bus("proposer") as agent:
        started = RunStarted(incarnation=1, n=1, recipe="toy", actuators=(knob,), rules=RULES, keys=run.keys)
        await learner.append(ON.run, started.wire())
        for message, subject in (
            (AgentStatus(state="joined", moves=("rate",)), ON.agent("proposer")),
            (Vote(actuator="rate", stance="propose", value=2.0, tick=1, confidence=0.9), ON.vote("proposer")),
        ):
            await agent.publish(subject, message.wire())
            await run.server.logged(lambda event, subject=subject: event.subject == subject)  # type: ignore[misc]
        for tick in range(1, 5):
            seen = Observation(incarnation=1, n=1 + tick, tick=tick, step=tick, progress=0, metrics={})
            await learner.append(ON.observation, seen.wire())
    mesh = Mesh(RUN)
    for event in await run.verified():
        mesh.step(event)
    (decision,) = [out.message for out in mesh.pending.values() if isinstance(out.message, Decision)]
    assert decision.verdict == "adopted"
    return ON.decision(decision.id), decision


async def test_a_forgery_that_stands_where_a_decision_is_due_does_not_block_it(run: Run) -> None:
    subject, due = await said_by_hand(run)
    await run.forge(subject, b'{"stream":"OVEN-r","seq":7}')
    await run.forge(subject, due.model_copy(update={"value": 9.0}).wire())
    async with run.mesh() as mesh:
        await run.until(lambda event: event.subject == subject and event.body == due)
        assert not mesh.done()
    logged = await run.verified()
    assert [event.body for event in logged if event.subject == subject][-1] == due
    assert faults(logged) == [(subject, "malformed"), (subject, "signature")]
    report = replay(logged, RUN)
    assert report.same and report.adopted == 1 and not report.pending


async def test_a_forgery_that_comes_first_by_a_moment_does_not_block_it_either(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject, due = await said_by_hand(run)
    real, forged = Bus.append, list[int]()

    async def append(bus: Bus, on: str, *args: Any, **kwargs: Any) -> int:
        if on == subject and bus.name == "mesh" and not forged:
            forged.append(await run.forge(subject, due.wire(), signed=False))
        return await real(bus, on, *args, **kwargs)

    monkeypatch.setattr(Bus, "append", append)
    async with run.mesh():
        await run.until(lambda event: event.subject == subject and event.body == due)
    assert f"event {forged[0]} on {subject} is ignored: it is not signed" in caplog.text
    assert replay(await run.verified(), RUN).same


async def test_three_replicas_and_a_forgery_make_one_decision(run: Run) -> None:
    subject, due = await said_by_hand(run)
    await run.forge(subject, due.wire())
    async with run.mesh() as first, run.mesh() as two, run.mesh() as three:
        await run.until(lambda event: event.subject == subject and event.body == due)
        assert not any(mesh.done() for mesh in (first, two, three))
    logged = await run.verified()
    assert sum(event.body == due for event in logged) == 1
    assert sum(isinstance(event.body, BallotOpened) for event in logged) == 1


async def test_a_replica_with_another_key_publishes_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "oven.mesh")
    subject, due = await said_by_hand(run)
    head = (await run.server.events())[-1].seq
    async with run.server.bus("admin") as bus:
        stranger = asyncio.create_task(replica_process.serve(bus, RUN, run.pin))
        try:
            await until(lambda: "outputs pending" in caplog.text)
            async with run.mesh():
                await run.until(lambda event: event.subject == subject and event.body == due)
        finally:
            stranger.cancel()
            await asyncio.gather(stranger, return_exceptions=True)
    assert "it publishes nothing" in caplog.text
    logged = await run.verified()
    assert faults(logged) == [] and len(logged) == head + 2


async def test_a_learner_resumes_only_with_the_keys_of_the_run(run: Run) -> None:
    first = run.learner([1.0])
    await asyncio.to_thread(first.start)
    assert await asyncio.to_thread(first.close, "stopped")
    second = run.learner([1.0], keys={})
    await asyncio.to_thread(second.start)
    assert await asyncio.to_thread(second.close, "completed")
    assert faults(await run.verified()) == []
    begun = [event.body for event in await run.verified() if isinstance(event.body, RunStarted)]
    assert [body.keys for body in begun] == [run.keys, run.keys]

    stranger = ProcessLink(run.server.url, RUN, Credentials.load(run.server.creds("admin")))
    with pytest.raises(ConfigError, match="signed with another learner's key"):
        await asyncio.to_thread(stranger.open)


async def test_an_operator_is_told_what_the_learner_says_and_not_what_a_forger_does(run: Run) -> None:
    learner = run.learner([1.0])
    await asyncio.to_thread(learner.start)
    await run.until(lambda event: isinstance(event.body, RunStarted))
    stop = OperatorCommand(id="c", action="stop")
    no = Receipt(incarnation=1, n=9, command="c", actuator="run.stop", status="rejected", tick=1, step=1)

    def stopping() -> bool:
        learner.poll()
        return learner.stopping

    with run.folder.hold():  # the stack is up
        carrying_out = asyncio.create_task(execute_command(LocalRun(run.folder), stop, 30))
        await run.until(lambda event: event.body == stop)
        for signed in (True, False):
            await run.forge(ON.receipt, no.wire(), signed=signed)
        await until(stopping)
        result = await carrying_out
    assert result.code == 0 and result.receipt is not None and result.receipt.status == "applied"
    assert await asyncio.to_thread(learner.close, "stopped")
    assert faults(await run.verified()) == [(ON.receipt, "signature"), (ON.receipt, "unsigned")]


async def test_a_remote_follower_gets_the_end_of_the_run_after_the_mesh_is_gone(run: Run) -> None:
    learner = run.learner([1.0])
    await asyncio.to_thread(learner.start)
    monitor = Credentials.load(run.server.creds("monitor"))
    followed: list[Event] = []
    reading = asyncio.Event()

    async def follow() -> None:
        async for event in RemoteRun(RUN, run.server.url, monitor, keys=run.keys).follow(lambda _: None):
            followed.append(event)
            reading.set()

    async with run.mesh():
        following = asyncio.create_task(follow())
        await reading.wait()
    assert await asyncio.to_thread(learner.close, "completed")
    async with asyncio.timeout(30):
        await following
    assert isinstance(followed[-1].body, RunEnded)


async def test_an_operator_is_believed_under_the_own_name_only(run: Run) -> None:
    learner = run.learner([1.0])
    await asyncio.to_thread(learner.start)
    await run.until(lambda event: isinstance(event.body, RunStarted))
    hold = OperatorCommand(id="c", action="hold")
    async with run.server.bus("operator") as operator, run.server.bus() as admin:
        real = await operator.append(ON.operator("operator"), hold.wire(), message_id="c")
        signer = operator.signer
        admin.signer = signer
        await admin.append(ON.operator("ann"), hold.wire(), message_id="d")
    assert await asyncio.to_thread(learner.close, "stopped")
    logged = await run.verified()
    assert faults(logged) == [(ON.operator("ann"), "unsigned")]
    assert next(event for event in logged if event.seq == real).body == hold


async def test_what_an_agent_puts_into_headers_does_not_silence_history(run: Run) -> None:
    status = AgentStatus(state="joined").wire()
    async with run.server.bus("proposer") as agent, run.mesh():
        for value in ("\x7f" * 3, "é", "x" * 2000):
            await agent.client.publish(
                ON.agent("proposer"), status, headers={"Nats-Msg-Id": value, "Oven-Signature": value}
            )
        async with asyncio.timeout(60):
            while len(events := await log_sources.read_history(agent, RUN)) < 3:
                await asyncio.sleep(0.01)
    assert [(event.message_id, event.signature) for event in events] == [("", "")] * 3

"""A whole run in miniature, to be disturbed: the real server, mesh, history and prior service, an agent's host and the
learner's link. In lockstep and without a clock in it, so that what is decided is the same every time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from oven_agents import Agent, Vote, Window
from oven_agents.runtime.agent_host import host
from oven_agents.sdk.agent_session import Session
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Receipt
from oven_core.protocol.names import Subjects, inbox_prefix
from oven_core.protocol.rules import Rules
from oven_core.replica.replica_process import serve, serve_history
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring, Signer
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService
from oven_kg.service.service_process import run_service
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.log.replay import ReplayReport, replay
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder

RUN = "r"
ON = Subjects(RUN)
RATE = "rate"
TICKS = 24
HOSTILE = "evil"
"""Has a key of its own, and has not joined: nothing that it says is a vote."""


class Steady(Agent):
    """An agent that proposes at every sixth tick, depending only on the tick."""

    moves = (RATE,)

    def vote(self, window: Window) -> Vote | None:
        if window.tick == 0 or window.tick % 6:
            return None
        return window.propose(RATE, 1.0 + window.tick / 12, confidence=0.9, why=f"tick {window.tick}")


@dataclass
class Played:
    """What the learner applied, what the mesh decided, and the log of both."""

    applied: list[tuple[Any, ...]]
    decided: list[tuple[Any, ...]]
    votes: list[tuple[Any, ...]]
    """Of the honest agent, as the log has them: what it accepted shows in what it says."""
    report: ReplayReport
    events: list[Event] = field(repr=False)

    @property
    def accepted(self) -> tuple[Any, ...]:
        return self.applied, self.decided, self.votes


class HonestRun:
    def __init__(self, server: EmbeddedServer, link: ProcessLink, learner: OvenClient, knob: list[float]) -> None:
        self.server, self.link, self.learner, self.knob = server, link, learner, knob

    @property
    def url(self) -> str:
        return self.server.url

    def key(self, name: str) -> Credentials:
        return Credentials.load(self.server.folder.creds / f"{name}.nk")

    def bus(self, name: str = "admin") -> contextlib.AbstractAsyncContextManager[Bus]:
        return Bus.connect(self.url, self.key(name))

    @contextlib.asynccontextmanager
    async def hostile(self) -> AsyncIterator[Hostile]:
        """A nats-py client with the hostile agent's key, without any of our code."""
        made = await Hostile.connect(self.url, self.key(HOSTILE))
        try:
            yield made
        finally:
            await made.client.close()

    async def play(self, attack: Callable[[HonestRun, int], Awaitable[None]] | None = None) -> Played:
        """Train with the attack before every tick."""
        for step in range(1, TICKS + 1):
            if attack is not None:
                await attack(self, step)
            await asyncio.to_thread(self._step, step)
        await asyncio.to_thread(self.learner.close, "completed")
        return await self.played()

    def _step(self, step: int) -> None:
        self.learner.observe(step, {"loss": 1.0 / step})
        self.learner.poll()

    async def played(self) -> Played:
        async with self.bus() as bus:
            raw = [event async for event in bus.read(RUN, until=await bus.head(RUN))]
        pin = Signer(self.key("learner")).public
        events = list(map(Keyring(pin).verify, raw))
        decided, votes = [], []
        for event in events:
            body = event.body
            if isinstance(body, Decision) and body.ballot:
                lines = tuple((line.agent, line.stance, line.value, line.weight) for line in body.tally)
                # Without its tick: a vote may be in the log before the observation that it rests on, which the agent
                # hears as it is published.
                decided.append((body.actuator, body.verdict, body.value, body.before, body.reason, lines))
            elif isinstance(body, Vote) and event.author == "steady":
                votes.append((body.actuator, body.stance, body.value, body.tick, body.confidence))
        receipts = [event.body for event in events if isinstance(event.body, Receipt)]
        applied = [(r.actuator, r.status, r.before, r.after, r.tick) for r in receipts] + [("knob", *self.knob)]
        return Played(applied, decided, votes, replay(iter(events), RUN), events)


class Hostile:
    def __init__(self, client: Client, key: Credentials) -> None:
        self.client = client
        self.key = key
        self.refusals: Counter[str] = Counter()
        """What the server refused → how often."""

    @classmethod
    async def connect(cls, url: str, key: Credentials, **options: Any) -> Hostile:
        made = cls(Client(), key)

        async def note(error: Exception) -> None:
            made.refusals[str(error)] += 1

        await made.client.connect(
            servers=[url],
            nkeys_seed_str=key.seed.decode(),
            inbox_prefix=inbox_prefix(key.name),
            error_cb=note,
            allow_reconnect=False,
            **options,
        )
        return made

    async def say(self, subject: str, data: bytes = b"{}", *, reply: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.client.publish(subject, data, reply=reply, headers=named or None)

    async def settled(self) -> None:
        """Wait until the server has received all messages."""
        await self.client.flush(10)


@contextlib.asynccontextmanager
async def running(folder: Path, *, kg: bool = False) -> AsyncIterator[HonestRun]:
    files = ServerFolder(folder / "nats", RUN)
    for role in ("admin", "learner", "mesh", "history", "kg", "operator", "monitor"):
        files.add_user(role, role)
    for name in ("steady", HOSTILE):
        files.add_user("agent", name)
    files.add_user("member", "judge")
    server = await EmbeddedServer.start(files, folder / "nats-server.log")
    keys = {
        role: Credentials.load(files.creds / f"{role}.nk") for role in ("admin", "learner", "mesh", "history", "kg")
    }
    public = {role: Signer(keys[role]).public for role in ("learner", "mesh")}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        admin = await stack.enter_async_context(Bus.connect(server.url, keys["admin"]))
        await streams.create(admin.jetstream, RUN)
        mesh = await stack.enter_async_context(Bus.connect(server.url, keys["mesh"], name="mesh"))
        history = await stack.enter_async_context(Bus.connect(server.url, keys["history"], name="history"))
        await serve_history(history, RUN)
        if kg:
            prior = await stack.enter_async_context(Bus.connect(server.url, keys["kg"], name="kg"))
            await stack.enter_async_context(run_service(prior, PriorService(load())))
        agent = Credentials.load(files.creds / "steady.nk")
        tasks = [
            asyncio.create_task(serve(mesh, RUN, public["learner"])),
            asyncio.create_task(host([Session(Steady(), "steady")], server.url, RUN, agent, public["learner"])),
        ]
        stack.push_async_callback(_end, tasks)
        joined = asyncio.Event()

        async def join() -> None:
            async for event in admin.read(RUN, subjects=[ON.agent("steady")]):
                if isinstance(event.body, AgentStatus) and event.body.state == "joined":
                    joined.set()
                    return

        await asyncio.wait_for(join(), 60)
        knob = [1.0]
        actuators = Actuators()
        actuators.scalar(RATE, lambda: knob[0], lambda value: knob.__setitem__(0, value), low=0.1, high=10)
        link = ProcessLink(server.url, RUN, keys["learner"], poll_s=0.001, pin=public["learner"])
        rules = Rules(autonomy="auto", cooldown_ticks=0, newcomers="full", evidence_kinds=1)
        learner = OvenClient(link, actuators, max_steps=TICKS, rules=rules, lockstep=True, keys=public)
        await asyncio.to_thread(learner.start)
        try:
            yield HonestRun(server, link, learner, knob)
        finally:
            await asyncio.to_thread(learner.close, "stopped")
        for task in tasks:  # neither died of what it heard
            assert not task.done(), task


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

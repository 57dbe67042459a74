"""`bench faults`: how soon a healthy agent's vote is counted while something else in the swarm is wrong.

The real server, two mesh replicas and a learner that takes 50 steps per second. A healthy agent proposes 20 times per
second, each time for a knob without a ballot; a vote counts when the ballot that it opens is read back from the log.
All in one run: without a fault (the floor), during each, and from the moment that a frozen server thaws.
`ping_p99_ms` is the bare server's answer meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.statistics import percentile
from oven_controller.stack.plan import own_command
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.streams import VOTE_BYTES
from oven_core.errors import BusError, ProcessError
from oven_core.protocol.messages import AgentStatus, BallotOpened, Vote
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.process.child import Child
from oven_runs.server.embedded import EmbeddedServer, ServerFolder

RUN = "faults"
KNOBS = 40
VOTES_HZ, STEPS_HZ = 20, 50
WITHIN_S = 10.0
RULES = Rules(autonomy="observe", window_ticks=2, silent_ticks=50, newcomers="full", open_ballots=KNOBS)


class Stage:
    """One swarm for all faults, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on = folder, Subjects(RUN)
        self.files = ServerFolder(folder / "nats", RUN)
        for role in ("admin", "learner", "mesh", "history"):
            self.files.add_user(role, role)
        for agent in ("healthy", "faulty"):
            self.files.add_user("agent", agent)
        self.children: dict[str, Child] = {}
        self.counted: dict[str, asyncio.Future[float]] = {}
        self.at = self.lives = 0

    def credentials(self, name: str) -> Credentials:
        return Credentials.load(self.files.creds / f"{name}.nk")

    async def child(self, name: str, command: tuple[str, ...], role: str) -> Child:
        keys = {"OVEN_CREDS": role, "OVEN_HISTORY_CREDS": "history"}
        env = {key: str(self.files.creds / f"{value}.nk") for key, value in keys.items()}
        env |= {"OVEN_URL": self.server.url, "OVEN_RUN": RUN, "OVEN_REPLICA": name}
        self.lives += 1
        log = self.folder / f"{name}-{self.lives}.log"
        self.children[name] = await Child.start(name, command, log, env=env)
        return self.children[name]

    async def mesh(self, name: str) -> None:
        child = await self.child(name, own_command("mesh"), "mesh")
        while "replayed" not in child.tail(1000):
            if child.returncode is not None:
                raise ProcessError(f"{name} did not start:\n{child.tail()}")
            await asyncio.sleep(0.02)

    async def faulty(self, kind: str) -> None:
        command = (sys.executable, "-P", "-m", "oven_bench.performance.swarm_faults", kind)
        child = await self.child("faulty", command, "faulty")
        while child.tail(1) in ("", "0"):  # it prints how many votes a second it has reached
            if child.returncode is not None:
                raise ProcessError(f"the faulty agent did not start:\n{child.tail()}")
            await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.server = await EmbeddedServer.start(self.files, self.folder / "nats-server.log")
        try:
            async with (
                Bus.connect(self.server.url, self.credentials("admin")) as admin,
                Bus.connect(self.server.url, self.credentials("healthy")) as self.voice,
                contextlib.AsyncExitStack() as stack,
            ):
                await streams.create(admin.jetstream, RUN)
                await asyncio.gather(self.mesh("mesh"), self.mesh("mesh-2"))
                knobs = tuple(f"knob.{n}" for n in range(KNOBS))
                # A specialist, whose ballots pass the vote: whoever opens one that fails has to wait.
                status = AgentStatus(state="joined", moves=knobs, speciality=knobs)
                stack.push_async_callback(_cancelled, asyncio.create_task(self._read(admin)))
                with training(self.server.url, self.credentials("learner")):
                    await self.voice.publish(self.on.agent("healthy"), status.wire())
                    yield
        finally:
            for child in self.children.values():
                child.signal(signal.SIGCONT)
                await child.end(2)
            await self.server.stop()

    async def _read(self, bus: Bus) -> None:
        async for event in bus.read(RUN, subjects=[self.on.ballot("*")]):
            if isinstance(event.body, BallotOpened) and event.body.opened_by == "healthy":
                waiting = self.counted.pop(event.body.actuator, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(time.perf_counter())

    async def vote(self) -> float | None:
        """Milliseconds until it is counted; None if that took more than ten seconds."""
        self.at = (self.at + 1) % KNOBS
        knob = f"knob.{self.at}"
        counted = self.counted[knob] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        ballot = Vote(actuator=knob, stance="propose", value=2.0, tick=1, confidence=0.9)
        with contextlib.suppress(BusError, TimeoutError):
            await self.voice.publish(self.on.vote("healthy"), ballot.wire())
            async with asyncio.timeout(WITHIN_S):
                return float(await counted - began) * 1e3
        return None

    async def votes(self, seconds: float) -> dict[str, float]:
        """What becomes of the healthy agent's votes for so long."""
        voting, pings = [], []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            voting.append(asyncio.create_task(self.vote()))
            began = time.perf_counter()
            with contextlib.suppress(BusError):
                await self.voice.flush()
                pings.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(1 / VOTES_HZ)
        took = await asyncio.gather(*voting)
        found = [each for each in took if each is not None]
        return {
            "healthy_p50_ms": round(percentile(found, 50), 2),
            "healthy_p99_ms": round(percentile(found, 99), 2),
            "votes": len(took),
            "uncounted": len(took) - len(found),
            "ping_p99_ms": round(percentile(pings, 99), 2),
        }


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def training(url: str, credentials: Credentials) -> Any:
    """A learner on its own thread."""
    actuators, values = Actuators(), dict.fromkeys((f"knob.{n}" for n in range(KNOBS)), 1.0)
    for name in values:
        actuators.scalar(name, lambda n=name: values[n], lambda v, n=name: values.update({n: v}), low=0.1, high=10)  # type: ignore[misc]
    learner = OvenClient(ProcessLink(url, RUN, credentials), actuators, rules=RULES)
    learner.start()
    stop = threading.Event()

    def train() -> None:
        while not stop.wait(1 / STEPS_HZ):
            learner.observe(learner.tick + 1, {"loss": 1.0})
            learner.poll()

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        learner.close("completed")


async def measure(folder: Path, seconds: float, frozen_s: float) -> dict[str, float]:
    """`FAULT_healthy_p99_ms` and so on, flat."""
    stage, found = Stage(folder), dict[str, float]()

    async def during(fault: str, begin: Callable[[], Awaitable[object]], end: Callable[[], Awaitable[object]]) -> None:
        await begin()
        found.update({f"{fault}_{key}": value for key, value in (await stage.votes(seconds)).items()})
        await end()

    async def nothing() -> None: ...

    async def silence() -> None:
        await stage.faulty("flood 0 1")
        stage.children["faulty"].signal(signal.SIGSTOP)

    async def end_flood() -> None:
        found["agent_floods_per_s"] = float(stage.children["faulty"].tail(1))
        await end_faulty()

    async def end_faulty() -> None:
        stage.children["faulty"].kill()
        await stage.children.pop("faulty").end()

    async def kill_a_mesh() -> None:
        stage.children["mesh-2"].kill()
        await stage.children["mesh-2"].wait()

    async with stage.running():
        await stage.votes(1)
        await during("none", nothing, nothing)
        await during("agent_frozen", silence, end_faulty)
        await during("agent_floods", lambda: stage.faulty("flood 0 10000"), end_flood)
        await during("votes_oversized", lambda: stage.faulty(f"flood {2 * VOTE_BYTES} 200"), end_faulty)
        await during("mesh_killed", kill_a_mesh, lambda: stage.mesh("mesh-2"))
        freeze(stage.server, True)
        await asyncio.sleep(frozen_s)
        thawed = time.perf_counter()
        freeze(stage.server, False)
        while await stage.vote() is None:
            pass
        found["server_frozen_s"] = frozen_s
        found["server_frozen_recovered_s"] = round(time.perf_counter() - thawed, 2)
        await during("server_thawed", nothing, nothing)
    return found


def freeze(server: EmbeddedServer, frozen: bool) -> None:
    for process in psutil.Process(server.child.pid).children(recursive=True):
        process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)


async def flood(size: int, rate: int) -> None:
    """The faulty agent: so many votes a second, each with so much padding. It runs in its own process."""
    on, name = Subjects(os.environ["OVEN_RUN"]), "faulty"
    body = Vote(actuator="knob.0", stance="for", tick=1, confidence=0.1).wire()
    body = body[:-1] + b', "padding": "' + b"x" * size + b'"}'
    async with Bus.connect(os.environ["OVEN_URL"], Credentials.load(Path(os.environ["OVEN_CREDS"]))) as bus:
        await bus.publish(on.agent(name), AgentStatus(state="joined").wire())
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        while True:
            due = round((loop.time() - began) * rate) - sent
            for _ in range(min(due, 500)):
                await bus.publish(on.vote(name), body)
                sent += 1
            await bus.flush()
            print(round(sent / (loop.time() - began)), flush=True)
            await asyncio.sleep(0.001)


def bench(
    seconds: Annotated[float, Option(help="Seconds of each fault.")] = 10.0,
    frozen: Annotated[float, Option(help="Seconds that the server is frozen.")] = 10.0,
    as_json: Json = False,
) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(measure(Path(scratch), seconds, frozen))
    print_object(found, as_json)
    return 0


BENCH = Bench(
    "faults", bench, "how soon a healthy agent's vote counts beside a frozen, a flooding, a killed one", "--json"
)

if __name__ == "__main__":
    asyncio.run(flood(*map(int, sys.argv[1].split()[1:])))

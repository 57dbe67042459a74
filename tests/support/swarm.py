"""A run on a test's server: mesh replicas and agents as separate processes, and a learner that keeps training."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.support.learner_side import LIMIT_S, RUN, Process, until

from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.log.replay import replay

# Wants another value whenever it may: there is always a ballot or a decision under way.
PENDULUM = '''
"""Swings the clip."""
from oven_agents import Agent

class Pendulum(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        value = 2.0 if window.knobs["grad.clip"].number <= 1.0 else 1.0
        return window.propose("grad.clip", value, confidence=0.95, why="it swings")
'''
MESH = ("-c", "from oven_core.replica.replica_process import main; main([])")
RULES = Rules(
    cooldown_ticks=0,
    max_interventions=1_000_000,
    window_ticks=2,
    silent_ticks=30,
    newcomers="full",
    reversals=10**6,
    evidence_kinds=1,
)


class Site(Protocol):
    """The address of the run's bus: one server, or a cluster."""

    @property
    def url(self) -> str: ...
    def creds(self, name: str) -> Path: ...
    def env(self, name: str) -> dict[str, str]: ...
    def bus(self, name: str = "admin") -> Any: ...


class Swarm:
    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.processes: dict[str, Process] = {}
        self.events: list[Event] = []
        """The log so far, as one reader follows it."""
        self.clip = [1.0]
        self.learner: OvenClient | None = None
        self.between_steps: deque[Callable[[], object]] = deque()
        """What the training thread calls before its next step, each once."""
        self._stop = threading.Event()
        self._lives = 0

    async def mesh(self, name: str = "mesh") -> Process:
        """Return a replica that has replayed the log."""
        env = self.site.env("mesh") | {"OVEN_REPLICA": name}
        self._lives += 1
        process = Process(list(MESH), env, self.folder / f"{name}-{self._lives}.log")
        self.processes[name] = process
        await until(lambda: "replayed" in process.output() or process.popen.poll() is not None)
        assert process.popen.poll() is None, process.output()
        return process

    async def agent(self, name: str, source: str = PENDULUM, unready: bool = False) -> Process:
        path = self.folder / f"{name}.py"
        path.write_text(source)
        command = ["-c", f"from oven_agents.runtime.agent_host import main; main([{str(path)!r}])"]
        process = self.processes[name] = Process(command, self.site.env(name), self.folder / f"{name}.log")
        if not unready:
            await self.logged(lambda event: event.subject.endswith(f".agent.{name}"))
        return process

    def signal(self, number: signal.Signals, *names: str) -> None:
        for name in names:
            os.kill(self.processes[name].popen.pid, number)

    async def logged(self, wanted: Callable[[Event], object], after: int = 0) -> Event:
        """Return the first matching event after a sequence, as soon as it is in the log."""
        position = 0
        batch: list[Event] = []

        def look() -> bool:
            nonlocal position
            while position < len(self.events) and not batch:
                event = self.events[position]
                position += 1
                if event.seq > after and wanted(event):
                    batch.append(event)
            return bool(batch)

        await until(look)
        return batch[0]

    @property
    def seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    async def decided(self, count: int = 1) -> None:
        """Wait until the log has so many further decisions, each applied by the learner."""
        for _ in range(count):
            made = names.author((await self.logged(adopted, after=self.seq)).subject)
            await self.logged(partial(_answers, made))

    async def ticks(self, count: int) -> None:
        """Wait until the log has observations of so many further ticks."""
        assert self.learner is not None
        wanted = self.learner.tick + count
        await self.logged(lambda event: isinstance(event.body, Observation) and event.body.tick >= wanted)

    @asynccontextmanager
    async def training(self, hz: float, rules: Rules = RULES, gauges: int = 1) -> AsyncIterator[OvenClient]:
        """Yield a learner that takes `hz` steps per second regardless of faults and ends in order."""
        actuators, clip = Actuators(), self.clip
        actuators.scalar("grad.clip", lambda: clip[0], lambda v: clip.__setitem__(0, v), low=0.1, high=10)
        link = ProcessLink(self.site.url, RUN, Credentials.load(self.site.creds("learner")))
        learner = self.learner = OvenClient(link, actuators, rules=rules, max_steps=10**6)
        await asyncio.to_thread(learner.start)
        measured = {f"loss/{n}": 1 / (n + 3) for n in range(gauges)}

        def train() -> None:
            while not self._stop.wait(1 / hz):
                while self.between_steps:
                    self.between_steps.popleft()()
                learner.observe(learner.tick + 1, measured)
                learner.poll()

        thread = threading.Thread(target=train, name="train")
        thread.start()
        try:
            yield learner
        finally:
            self._stop.set()
            await asyncio.to_thread(thread.join)
            closed = await asyncio.to_thread(learner.close, "completed", timeout_s=60)
        assert closed, "everything that the learner said is in the log"

    async def ended(self) -> int:
        """Return the number of decisions in the log after the run ended and the replicas finished. The log must be
        sound."""
        await self.logged(lambda event: isinstance(event.body, RunEnded))
        async with asyncio.timeout(LIMIT_S):
            while True:
                count = len(self.events)
                if not replay(self.events, RUN).missing:
                    return sound(self.events)
                await until(lambda count=count: len(self.events) > count)  # type: ignore[misc]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()


@asynccontextmanager
async def swarming(site: Site, folder: Path) -> AsyncIterator[Swarm]:
    swarm = Swarm(site, folder)

    async def follow(bus: Bus) -> None:
        async for event in bus.read(RUN):
            swarm.events.append(event)

    async with site.bus() as bus:
        following = asyncio.create_task(follow(bus))
        try:
            yield swarm
        finally:
            swarm.end()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _answers(decision: str, event: Event) -> bool:
    return isinstance(event.body, Receipt) and event.body.decision_id == decision


def adopted(event: Event) -> bool:
    return isinstance(event.body, Decision) and event.body.verdict == "adopted"


def sound(events: Sequence[Event]) -> int:
    """Check that the log is complete and follows from its inputs, and return the number of its decisions."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    bodies = [event.body for event in events if hasattr(event.body, "incarnation")]
    numbers = [(body.incarnation, body.n) for body in bodies]  # type: ignore[union-attr]
    assert numbers == sorted(set(numbers)), "the learner's messages are there once, and in order"
    observed = [event.body.tick for event in events if isinstance(event.body, Observation)]
    assert observed == list(range(1, len(observed) + 1))
    assert sum(isinstance(event.body, RunStarted) for event in events) == len({n for n, _ in numbers})
    decisions = [event.subject for event in events if isinstance(event.body, Decision)]
    assert all(count == 1 for count in Counter(decisions).values())
    report = replay(events, RUN)
    assert report.same and not report.pending, report
    assert report.decisions == len(decisions)
    return len(decisions)

"""A server, a mesh and agents for the benches, started as `up` starts them, and a learner in the bench's process.

The agents are the installed ones, or copies of `oven_bench/performance/load_agent.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oven_controller.stack.process_plan import Plan, make_pools
from oven_controller.stack.processes import Processes
from oven_core import plugins
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import ProcessError
from oven_core.protocol.messages import Decision, LogMessage, MetricSpec
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import KEYS, Keyring, load_keys
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.access.log_watch import LogWatch
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded_server import EmbeddedServer
from oven_runs.settings.agents import AgentSpec, agent_spec

RUN = "bench"
KNOB = "bench.knob"
ASKED = "bench/asked"
GAUGES = {f"gauge/{number}": 1.0 / (number + 3) for number in range(24)}
"""With `bench/asked` 25 metrics, about as many as in the GRPO recipe."""
RULES = Rules(
    evidence_kinds=1,  # the agents only measure the bus
    window_ticks=1000,  # a ballot closes only when all have voted
    silent_ticks=1_000_000,
    expire_ticks=100_000,
    cooldown_ticks=0,
    max_interventions=1_000_000_000,
    contradictions=(),
    newcomers="full",
    reversals=1_000_000_000,
    votes_per_tick=1_000_000_000,
)
_REQUEST = re.compile(r"request (\d+)")


@dataclass
class Swarm:
    folder: RunFolder
    url: str
    bus: Bus
    agents: tuple[str, ...]
    deaths: list[str] = field(default_factory=list)
    """A line for each process that died."""
    pids: dict[str, int] = field(default_factory=dict)
    """Process → its id, or that of its guard."""

    def credentials(self, role: str) -> Credentials:
        return Credentials.load(self.folder.server.creds / f"{role}.nk")

    def check(self) -> None:
        """Raises ProcessError if a process died, because then the figures mean something else."""
        if self.deaths:
            raise ProcessError("; ".join(self.deaths))


@contextlib.asynccontextmanager
async def started(
    folder: RunFolder, agents: Sequence[AgentSpec], per_process: int | None, *, mesh: bool = True
) -> AsyncIterator[Swarm]:
    """A server, a mesh and agents that have joined. Nothing in this process reads the log. Raises OvenError if a
    process does not start."""
    for role in ("admin", "learner", "mesh", "history"):
        folder.server.add_user(role, role)
    hosts = make_pools(agents, per_process)
    for pool in hosts:
        folder.server.add_user("agent", pool.key, pool.names)
    server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
    try:
        admin = Credentials.load(folder.server.creds / "admin.nk")
        async with Bus.connect(server.url, admin) as bus:
            await streams.create(bus.jetstream, RUN)
            started_swarm = Swarm(folder, server.url, bus, tuple(name for pool in hosts for name in pool.names))
            started_swarm.pids["nats-server"] = server.child.pid
            plan = Plan(folder, server.url)
            async with LogWatch(bus, RUN, Keyring(folder.pin()), 0, lambda event: None, lambda event: None) as watch:
                processes = Processes(
                    plan, bus, watch, asyncio.Event(), started_swarm.deaths.append, started_swarm.pids.__setitem__
                )
                try:
                    if mesh:
                        await processes.start_meshes(1)
                    await processes.start_agents(hosts)
                except BaseException:
                    await processes.end_others()
                    raise
            try:
                yield started_swarm
            finally:
                await processes.end_others()
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def swarm(
    scratch: Path, agents: int, per_process: int = 1, *, mesh: bool = True, reviews: bool = False
) -> AsyncIterator[Swarm]:
    """A swarm of agents that propose on request. With `reviews`, only the first one does, and the others review its
    ballots. Raises the same errors as `started`."""
    proposer, reviewer = (str(Path(__file__).with_name(name)) for name in ("load_agent.py", "load_reviewer.py"))
    files = [proposer, *[reviewer if reviews else proposer] * (agents - 1)]
    specs = [AgentSpec(f"bench-{number:02d}", file) for number, file in enumerate(files)]
    async with started(Home(scratch).create(RUN, "bench"), specs, per_process, mesh=mesh) as running:
        yield running


@contextlib.asynccontextmanager
async def installed_swarm(folder: RunFolder, per_process: int | None) -> AsyncIterator[Swarm]:
    """A swarm of the installed agents. Raises ProcessError at the end if a process died meanwhile."""
    async with started(folder, [agent_spec(name) for name in installed()], per_process) as running:
        yield running
    running.check()


def installed() -> tuple[str, ...]:
    """The agents that `up` starts by default."""
    return tuple(plugins.find_plugins("agents"))


class Stamped(ProcessLink):
    """A link that records when the decision on each request was received."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        super().__init__(url, RUN, credentials)
        self.times: dict[int, float] = {}
        """Request → `time.perf_counter()`."""
        self.tick = 0
        """The tick of the newest decision, up to which the mesh has processed the log."""

    def receive(self) -> LogMessage | None:
        body = super().receive()
        if isinstance(body, Decision):
            self.tick = max(self.tick, body.tick)
            request = _REQUEST.search(body.reason)
            if request is not None and body.verdict == "adopted":
                self.times.setdefault(int(request[1]), time.perf_counter())
        return body


class Learner:
    """The client of a training loop, with one knob."""

    def __init__(self, swarm: Swarm) -> None:
        knob = [1.0]
        actuators = Actuators()
        actuators.scalar(KNOB, lambda: knob[0], lambda value: knob.__setitem__(0, value), low=0.5, high=4, scale="log")
        self.stamped = Stamped(swarm.url, swarm.credentials("learner"))
        metrics = tuple(MetricSpec(name=name) for name in (ASKED, *GAUGES))
        keys = load_keys(swarm.folder.server.creds / KEYS)
        self.client = OvenClient(self.stamped, actuators, rules=RULES, metrics=metrics, keys=keys)
        self.requests = 0

    @property
    def answered(self) -> bool:
        """Whether the newest request was decided. Agents propose nothing while a request is open, so the next would be
        lost."""
        return self.requests == 0 or self.requests in self.stamped.times

    def observe(self, ask: bool) -> None:
        self.requests += ask
        self.client.observe(self.client.tick + 1, GAUGES | {ASKED: float(self.requests)})

"""What steps and decisions cost the bus, the mesh and the agents: a real nats-server, and the processes of `up`.

The agents are the installed ones. Four more agents decide on request: one proposes and three answer its ballot.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import psutil

from oven_bench.performance import load_agent, load_reviewer
from oven_bench.performance.overhead import busy_knobs, busy_metrics, grpo_gauges
from oven_bench.performance.stack_under_test import ASKED, KNOB, RUN, Stamped, Swarm, installed, started
from oven_bench.scale.costs import Block, Cost
from oven_bench.scale.rank_costs import SimulatedRanks
from oven_core.errors import ProcessError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.messages import Decision, MetricSpec
from oven_core.protocol.names import log_stream
from oven_core.protocol.rules import Rules
from oven_core.security.signing import KEYS, load_keys
from oven_learner.client.inbox import Orders
from oven_learner.client.oven_client import OvenClient
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded_server import ServerFolder, free_port
from oven_runs.settings.agents import AgentSpec, agent_spec

RULES = Rules(
    evidence_kinds=1,  # the agents that decide on request measure nothing
    cooldown_ticks=0,
    max_interventions=1_000_000,
    contradictions=(),
    newcomers="full",
    reversals=1_000_000,
)
REVIEWERS = 3
REQUEST_SHARE = 0.7
"""Share of a block's steps, at its start, with requests. The last outcomes are published in the other steps."""
ANSWER_S = 60.0
"""Seconds after the end of a block in which its last request has to be decided."""
AGAIN_S = 2.0
"""Seconds without a change after which it is requested again, because its ballot was lost or rejected."""
SETTLE_S = 0.5
"""Seconds without a new event after which a block is over."""


@dataclass(frozen=True)
class Plan:
    """A block to measure: a number of ranks, steps at an even pace, and requested decisions."""

    ranks: int
    steps: int
    seconds: float
    requests: int = 0


class _Server(ServerFolder):
    """A server that reports its counters over HTTP on loopback."""

    def __init__(self, folder: Path, run: str) -> None:
        super().__init__(folder, run)
        self.http = f"127.0.0.1:{free_port()}"

    def write_conf(self, port: int, *args: object, **options: object) -> None:
        super().write_conf(port, http=self.http)


async def measure_blocks(
    scratch: Path, ranks: SimulatedRanks, plans: Sequence[Plan], advance: Callable[[str], None]
) -> list[Block]:
    """Return a block for each plan. Raises ProcessError if a process died, or if the wrong blocks decided something."""
    folder = Home(scratch).create(RUN, "custom")
    folder.server = server = _Server(folder.server.folder, RUN)
    files = [load_agent.__file__, *[load_reviewer.__file__] * REVIEWERS]
    specs = [agent_spec(name) for name in installed()]
    specs += [AgentSpec(f"bench-{number}", file) for number, file in enumerate(files)]
    blocks: list[Block] = []
    async with started(folder, specs, len(specs)) as swarm:
        learner = PacedLearner(swarm, ranks)
        await asyncio.to_thread(learner.client.start)
        meter = _Meter(swarm, server.http, learner)
        for plan in plans:
            block = await meter.measure(plan)
            swarm.check()
            if bool(plan.requests) != bool(block.decisions):
                raise ProcessError(f"{plan.requests} requests led to {block.decisions} decisions; run the bench again")
            blocks.append(block)
            advance(f"ranks {plan.ranks}, steps {plan.steps}, decisions {block.decisions}")
        await asyncio.to_thread(learner.client.close, "completed")
    return blocks


class PacedLearner:
    """A client that observes at a fixed pace and requests decisions."""

    def __init__(self, swarm: Swarm, ranks: SimulatedRanks) -> None:
        value = [1.0]
        knobs = busy_knobs()
        knobs.scalar(KNOB, lambda: value[0], lambda new: value.__setitem__(0, new), low=0.5, high=4, scale="log")
        self.link = Stamped(swarm.url, swarm.credentials("learner"))
        self.client = OvenClient(
            self.link, knobs, recipe="bench", metrics=(*busy_metrics(), MetricSpec(name=ASKED)), rules=RULES,
            mesh_code=mesh_code_hash(), keys=load_keys(swarm.folder.server.creds / KEYS), ranks=ranks,
        )  # fmt: skip
        self.ranks, self._requests, self._requested_at = ranks, 0, 0.0

    def train(self, plan: Plan) -> int:
        """Return the number of steps. There are more than planned if the last request is decided late. Raises
        ProcessError if it is not decided within ANSWER_S."""
        self.ranks.use(plan.ranks)
        began, requests, step = time.monotonic(), 0, 0
        while step < plan.steps or not self._is_answered:
            is_due = requests < plan.requests and requests * REQUEST_SHARE * plan.steps <= step * plan.requests
            if self._is_answered and is_due and step < plan.steps:
                requests += 1
                self._request()
            elif not self._is_answered and time.monotonic() > self._requested_at + AGAIN_S:
                self._request()
            tick = self.client.tick + 1
            # The reward rises, because the installed agents would propose changes otherwise.
            metrics = grpo_gauges(tick, 1.0) | {"reward": 1e-4 * tick, ASKED: float(self._requests)}
            self.client.observe(tick, metrics)
            self.client.poll()
            step += 1
            time.sleep(max(0.0, began + step * plan.seconds / plan.steps - time.monotonic()))
            if time.monotonic() > began + plan.seconds + ANSWER_S:
                raise ProcessError(f"{plan.requests} requests were not decided within {ANSWER_S:g} s")
        time.sleep(max(0.0, began + plan.seconds - time.monotonic()))
        return step

    def _request(self) -> None:
        self._requests += 1
        self._requested_at = time.monotonic()

    @property
    def _is_answered(self) -> bool:
        """Whether the newest request led to a change. Agents propose nothing before, so the next would be lost."""
        return not self._requests or self._requests in self.link.times


class _Meter:
    """Reads the counters of the server, of the processes and of the ranks."""

    def __init__(self, swarm: Swarm, http: str, learner: PacedLearner) -> None:
        self._swarm, self._http, self._learner = swarm, http, learner
        self._agents = [pid for name, pid in swarm.pids.items() if name not in ("nats-server", "mesh")]

    async def measure(self, plan: Plan) -> Block:
        """Return the costs from the first step until the last message is logged, without those of this measurement."""
        gloo = self._learner.ranks.gloo
        first, before, rank_messages, began = await self._read(), await self._read(), gloo.messages, time.monotonic()
        steps = await asyncio.to_thread(self._learner.train, plan)
        previous, after, readings = before, await self._read(), 1
        while readings == 1 or after.events > previous.events:
            await asyncio.sleep(SETTLE_S)
            previous, after, readings = after, await self._read(), readings + 1
        seconds, reading = time.monotonic() - began, before - first
        cost = after - before - Cost(messages=reading.messages, message_bytes=reading.message_bytes) * readings
        decisions, copy_bytes, order_bytes = 0, 0, 0
        if cost.events:
            async for event in self._swarm.bus.read(RUN, after=int(before.events), until=int(after.events)):
                copy_bytes += len(event.line()) + 1
                if isinstance(event.body, Decision):
                    decisions += 1
                    order_bytes = len(pickle.dumps(Orders((event.body,), False)))
        cost += Cost(copy_bytes=copy_bytes)
        rank_messages = gloo.messages - rank_messages
        return Block(plan.ranks, steps, decisions, seconds, rank_messages, order_bytes, cost)

    async def _read(self) -> Cost:
        counters = json.loads(await asyncio.to_thread(self._fetch))
        state = (await self._swarm.bus.jetstream.stream_info(log_stream(RUN))).state
        pids = self._swarm.pids
        return Cost(
            messages=counters["in_msgs"] + counters["out_msgs"],
            message_bytes=counters["in_bytes"] + counters["out_bytes"],
            events=state.messages,
            store_bytes=state.bytes,
            server_s=_cpu_s(pids["nats-server"]),
            mesh_s=_cpu_s(pids["mesh"]),
            agents_s=sum(map(_cpu_s, self._agents)),
            link_s=_cpu_s(self._learner.link.pid),
        )

    def _fetch(self) -> bytes:
        with urlopen(f"http://{self._http}/varz", timeout=10) as reply:
            data: bytes = reply.read()
        return data


def _cpu_s(pid: int | None) -> float:
    """Return the CPU seconds of a process and of those that it started, such as the command of a guard."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)

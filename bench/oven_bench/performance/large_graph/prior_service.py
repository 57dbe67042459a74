"""The prior service with a large graph: how long it takes to start and answer, and how much memory it needs."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from string import ascii_letters
from typing import Final

import psutil

from oven_bench.intervals import observed_quantile
from oven_bench.performance.on_cpu_clock import OnCpu
from oven_controller.stack.plan import Plan
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ProcessError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import DiagnoseRequest, GraphInfoRequest, GraphQuery, Symptom
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_kg.service.endpoints import answers
from oven_learner.link.find_controller import Connection
from oven_recipes.pretrain.prior import ask_token_prior
from oven_runs.home.run_folder import Home
from oven_runs.server.embedded import EmbeddedServer

START_S: Final = 120.0
"""Time limit for the service's first answer."""
SYMPTOMS: Final = ("loss_spike", "grad_norm_spike", "entropy_collapse", "loss_plateau")
GRACE_S: Final = 10.0
TOKENS: Final = 150_000
"""Size of the vocabulary whose scores are asked for. Today's models have 128,000 to 262,000 tokens."""


@dataclass(frozen=True, slots=True)
class Answers:
    start_s: float
    """From its start to its first answer."""
    memory_bytes: int
    """Of its process after all queries, including the pages of the graph that it read."""
    query_ms: dict[str, list[float]]
    """Kind of query → the round trips over NATS."""
    cpu_ms: float
    """Mean CPU time of a query in the service."""
    scores: Scores


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of tokens that the learner got."""

    took_s: float
    """From the request to the checked scores, including the upload of the vocabulary."""
    cpu_s: float
    """Of the process that computed them."""
    tokens: int
    size: int
    """Bytes."""


async def query(folder: Path, nodes: list[str], scratch: Path) -> Answers:
    """Start a server and the service, send five kinds of query about each node, then ask for scores of tokens as the
    learner does."""
    run = Home(scratch).create("bench", "bench")
    for role in ("admin", "kg", "learner"):
        run.server.add_user(role, role)
    server = await EmbeddedServer.start(run.server, run.logs / "nats-server.log")
    try:
        async with Bus.connect(server.url, Credentials.load(run.server.creds / "admin.nk")) as bus:
            began = time.monotonic()
            child = await Plan(run, server.url, kg_folder=str(folder)).kg().start()
            try:
                await _first_answer(bus, began)
                start_s, process = time.monotonic() - began, psutil.Process(child.pid)
                spent, took = _cpu_s(process), dict[str, list[float]]()
                for node, target in pairwise(nodes):
                    for graph_query in _queries(node, target):
                        kind = f"{graph_query.op}_2" if graph_query.depth == 2 else graph_query.op
                        took.setdefault(kind, []).append(await _round_trip_ms(bus, graph_query))
                count = sum(map(len, took.values()))
                cpu_ms, memory = (_cpu_s(process) - spent) / count * 1e3, process.memory_info().rss
                learner = Credentials.load(run.server.creds / "learner.nk")
                scores = await _scored(Connection(server.url, run.run, learner, Rules()), process)
                return Answers(start_s, memory, took, cpu_ms, scores)
            finally:
                await child.end(GRACE_S)
    finally:
        await server.stop()


async def _first_answer(bus: Bus, began: float) -> None:
    while True:
        try:
            await bus.request(names.kg("info"), GraphInfoRequest().wire(), timeout_s=START_S)
            return
        except BusError:
            if time.monotonic() - began > START_S:
                raise ProcessError(f"the prior service did not answer within {START_S:g} s") from None
            await asyncio.sleep(0.02)


def _queries(node: str, target: str) -> tuple[GraphQuery, ...]:
    return (
        GraphQuery(op="neighbors", node=node),
        GraphQuery(op="neighbors", node=node, depth=2),
        GraphQuery(op="search", node=node),
        GraphQuery(op="path", node=node, to=target),
        GraphQuery(op="ppr", node=node, direction="out"),
    )


async def _scored(connection: Connection, service: psutil.Process) -> Scores:
    vocabulary = (*ascii_letters, *(f"{before}{number}" for before in ("", " ") for number in range(TOKENS // 2)))
    before, began = _children_s(service), time.monotonic()
    found = await asyncio.to_thread(ask_token_prior, connection, (*vocabulary, " concept")[-TOKENS:])
    took_s = time.monotonic() - began
    return Scores(took_s, _children_s(service) - before, len(found.scores), len(found.blob))


async def _round_trip_ms(bus: Bus, graph_query: GraphQuery) -> float:
    began = time.perf_counter()
    answer = json.loads(await bus.request(names.kg("query"), graph_query.wire(), timeout_s=START_S))
    took = time.perf_counter() - began
    if graph_query.op == "neighbors" and not answer["rows"]:
        raise ProcessError(f"the prior service found no neighbors of {graph_query.node}, which has some")
    return took * 1e3


def _children_s(process: psutil.Process) -> float:
    """CPU time of its child processes that have ended."""
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def diagnose_p99_us(folder: Path, rounds: int = 500) -> float:
    """On-CPU time of a diagnosis of one to three symptoms, with the large graph loaded."""
    ask = answers(large=folder)
    took = []
    with OnCpu() as clock:
        for count in range(rounds):
            symptoms = tuple(Symptom(id=id_) for id_ in SYMPTOMS[count % 2 : count % 2 + 1 + count % 3])
            request = DiagnoseRequest(symptoms=symptoms).wire()
            diagnosis, us = clock.timed(partial(ask, "diagnose", request))
            if not diagnosis or not json.loads(diagnosis)["causes"]:
                raise ProcessError("the diagnosis found no cause of a loss spike")
            took.append(us)
    return observed_quantile(took, 0.99)

"""`bench telemetry`: what do traces cost the training thread and its link's process?

One process trains, with a matrix product as the step, and has two real clients, each with its own server and log.
The link of one sends traces to a collector, the link of the other does not. Blocks of steps alternate between
them, so that both meet the same machine. Times are on-CPU: wall time minus the thread's wait in the run queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Annotated

import psutil
from typer import Option

from oven_bench.intervals import observed_quantile
from oven_bench.performance.on_cpu_clock import OnCpu, nothing
from oven_bench.performance.stack_under_test import server_with_log
from oven_bench.study import Report, Study
from oven_core.errors import ConfigError, ProcessError
from oven_core.security.credentials import Credentials
from oven_core.telemetry import tracing
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.link.process_link import ProcessLink

RUN = "bench"
SIDE = 256
"""Side of the two matrices. A product takes about 1 ms on one core, long enough to leave the caches cold."""
METRICS = {f"metric/{number}": 1.0 / (number + 1) for number in range(25)}
WARM_UP = 200
BATCH = 512
"""Spans that OpenTelemetry sends together."""
SETTLE_S = 60.0


@dataclass
class Arm:
    observe_us: list[float] = field(default_factory=list)
    noop_us: list[float] = field(default_factory=list)
    background_us: float = 0.0
    """CPU time of the link's process."""


async def _measure(steps: int, blocks: int) -> dict[str, float]:
    """Raises ProcessError if no trace arrived, because then nothing was compared."""
    with tempfile.TemporaryDirectory() as scratch:
        async with _site(Path(scratch) / "on") as traced, _site(Path(scratch) / "off") as bare:
            with _Collector() as collector:
                arms = await asyncio.to_thread(_train, {True: traced, False: bare}, collector.url, steps, blocks)
                posts = collector.posts()
    if not posts:
        raise ProcessError("no trace reached the collector, so nothing was compared")
    on, off = arms[True], arms[False]
    return {
        "observe_p99_on_us": observed_quantile(on.observe_us, 0.99),
        "observe_p99_off_us": observed_quantile(off.observe_us, 0.99),
        "observe_p50_on_us": observed_quantile(on.observe_us, 0.5),
        "observe_p50_off_us": observed_quantile(off.observe_us, 0.5),
        "noop_p99_us": observed_quantile(on.noop_us + off.noop_us, 0.99),
        "background_on_us": round(on.background_us / len(on.observe_us), 1),
        "background_off_us": round(off.background_us / len(off.observe_us), 1),
        "steps": len(on.observe_us),
        "collector_posts": posts,
    }


@contextlib.asynccontextmanager
async def _site(scratch: Path) -> AsyncIterator[ProcessLink]:
    """A link to a server with its own log."""
    async with server_with_log(scratch, RUN) as (server, folder):
        yield ProcessLink(server.url, RUN, Credentials.load(folder.creds / "learner.nk"))


def _train(links: Mapping[bool, ProcessLink], url: str, steps: int, blocks: int) -> dict[bool, Arm]:
    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)  # (SIDE, SIDE)
    arms = {True: Arm(), False: Arm()}
    clients = {tracing: OvenClient(link, Actuators()) for tracing, link in links.items()}

    def train(tracing: bool, count: int, arm: Arm | None) -> None:
        client, link = clients[tracing], links[tracing]
        spent = _cpu_us(link)
        with OnCpu() as clock:
            for _ in range(count):
                (a @ b).sum().item()
                took = clock.us(partial(client.observe, client.tick + 1, METRICS))
                idle = clock.us(nothing)
                client.poll()
                if arm is not None:
                    arm.observe_us.append(took)
                    arm.noop_us.append(idle)
        _empty(link)
        if arm is not None:
            arm.background_us += _cpu_us(link) - spent

    try:
        for tracing, client in clients.items():
            with _traces(url if tracing else ""):
                client.start()
            train(tracing, WARM_UP, None)
        for block in range(2 * blocks):
            tracing = block % 4 in (1, 2)  # off, on, on, off, so that neither arm is always the later one
            train(tracing, steps, arms[tracing])
    finally:
        for client in clients.values():
            client.close("completed")
    return arms


@contextlib.contextmanager
def _traces(url: str) -> Iterator[None]:
    """Links that start within send their traces to this URL, or nowhere if it is empty."""
    os.environ[tracing.VARIABLE] = url
    try:
        yield
    finally:
        del os.environ[tracing.VARIABLE]


def _cpu_us(link: ProcessLink) -> float:
    times = psutil.Process(link.pid).cpu_times()
    return (times.user + times.system) * 1e6


def _empty(link: ProcessLink) -> None:
    """Wait until everything is sent, before the other arm's block."""
    limit = time.monotonic() + SETTLE_S
    while link.unsent:
        if time.monotonic() > limit:
            raise ProcessError(f"the log did not take {link.unsent} messages within {SETTLE_S:g} s")
        time.sleep(0.001)


class _Collector:
    """An HTTP server in its own process that accepts and counts all requests."""

    def __enter__(self) -> _Collector:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_collect, args=(theirs,), daemon=True)
        self._process.start()
        self.url = str(self._pipe.recv())
        return self

    def posts(self) -> int:
        self._pipe.send(None)
        return int(self._pipe.recv())

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _collect(pipe: Pipe) -> None:
    posts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            posts.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pipe.send(f"http://127.0.0.1:{server.server_address[1]}")
        while True:
            pipe.recv()
            pipe.send(len(posts))


def bench(
    steps: Annotated[int, Option(help="Steps of each arm: half a minute in all.")] = 9000,
    blocks: Annotated[int, Option(min=1, help="Blocks of each arm, in turns.")] = 6,
) -> Report:
    if steps < BATCH * blocks:
        raise ConfigError(f"--blocks {blocks}: a block needs at least {BATCH} steps to send its traces; give fewer")
    return Report(asyncio.run(_measure(steps // blocks, blocks)))


STUDY = Study("telemetry", bench, "--json")

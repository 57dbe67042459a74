"""`bench outage`: what an outage of the bus costs a learner that continues observing.

A real nats-server, in its own process, is killed (SIGKILL) or frozen (SIGSTOP) under load and comes back after a
while. Then the log is read from its beginning and compared with what the learner said: what the log had confirmed must
be in it, everything once and in the order in which it was said. What was dropped is counted and is not in it; together
they must be all that was said. The learner's thread is timed throughout, on-CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import psutil
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.on_cpu_clock import OnCpu, nothing
from oven_bench.performance.stack_under_test import server_with_log
from oven_bench.statistics import seen_quantile
from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.messages import LearnerMessage
from oven_core.security.credentials import Credentials
from oven_core.security.signing import load_keys
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.link.link_interface import Make
from oven_learner.link.process_link import ProcessLink
from oven_runs.server.embedded import KEYS, EmbeddedServer

RUN = "bench"
BEFORE_S = AFTER_S = 2.0
"""Of training before the outage, and after all was caught up."""
CAUGHT_UP_S = 120.0
CLOSE_S = 60.0


class _Counting(ProcessLink):
    """A link that counts what it was given."""

    sent = 0

    def send(self, make: Make, *, droppable: bool = False) -> None:
        self.sent += 1
        super().send(make, droppable=droppable)


class _Training(threading.Thread):
    """Observes at a rate, and polls, until it is told to end."""

    def __init__(self, client: OvenClient, rate: float, metrics: int) -> None:
        super().__init__(name="training")
        self.enough = threading.Event()
        self.steps_us: list[float] = []
        self.noop_us: list[float] = []
        self.on_cpu = False
        self._client, self._period = client, 1 / rate
        self._metrics = {f"metric/{number}": 1.0 / (number + 1) for number in range(metrics)}

    def run(self) -> None:
        due, step = time.perf_counter(), 0
        with OnCpu() as clock:
            self.on_cpu = clock.known
            while not self.enough.is_set():
                step += 1
                self.steps_us.append(clock.us(partial(self._step, step)))
                self.noop_us.append(clock.us(nothing))
                due += self._period
                if (early := due - time.perf_counter()) > 0:
                    time.sleep(early)

    def _step(self, step: int) -> None:
        self._client.observe(step, self._metrics)
        self._client.poll()


async def _measure(seconds: float, rate: float, metrics: int, freeze: bool) -> dict[str, float | bool]:
    """Raises ProcessError when nothing was measured: the outage was none, or not all is in the log a minute after."""
    with tempfile.TemporaryDirectory() as scratch:
        async with server_with_log(Path(scratch), RUN) as (server, folder):
            link = _Counting(server.url, RUN, Credentials.load(folder.creds / "learner.nk"))
            client = OvenClient(link, Actuators(), keys=load_keys(folder.creds / KEYS))
            await asyncio.to_thread(client.start)
            training = _Training(client, rate, metrics)
            training.start()
            try:
                await asyncio.sleep(BEFORE_S)
                with _killed(server) if not freeze else _frozen(server):
                    await asyncio.sleep(seconds)
                    waited = link.unsent + link.dropped
                back = time.monotonic()
                if not freeze:
                    await server.restart()
                limit = back + CAUGHT_UP_S
                while link.unsent > max(8, rate) and time.monotonic() < limit:
                    await asyncio.sleep(0.01)
                back_s = time.monotonic() - back
                await asyncio.sleep(AFTER_S)
            finally:
                training.enough.set()
                await asyncio.to_thread(training.join)
                ended = await asyncio.to_thread(client.close, "completed", timeout_s=CLOSE_S)
            memory = psutil.Process().memory_info().rss
            if waited < seconds * rate / 2:
                raise ProcessError(
                    f"only {waited} messages waited after {seconds:g} s at {rate:g}/s: that was not an outage"
                )
            if not ended:
                raise ProcessError(f"{link.unsent} messages are not in the log {CLOSE_S:g} s after the end")
            logged = await _logged(server.url, Credentials.load(folder.creds / "admin.nk"))
    sent, once = client.position()["n"], set(logged)
    acknowledged = sent - link.unsent - link.dropped
    return {
        "seconds": seconds,
        "rate": rate,
        "sent": sent,
        "acknowledged": acknowledged,
        "in_log": len(logged),
        "lost_acknowledged": max(0, acknowledged - len(once)),
        "doubled": len(logged) - len(once),
        "out_of_order": sum(later <= sooner for sooner, later in pairwise(logged)),
        "dropped": link.dropped,
        "unaccounted": abs(sent - len(once) - link.dropped),
        "back_s": round(back_s, 3),
        "training_p50_us": seen_quantile(training.steps_us, 0.5),
        "training_p99_us": seen_quantile(training.steps_us, 0.99),
        "training_p999_us": seen_quantile(training.steps_us, 0.999),
        "training_max_us": seen_quantile(training.steps_us, 1.0),
        "noop_p999_us": seen_quantile(training.noop_us, 0.999),
        "on_cpu": training.on_cpu,
        "rss_mb": round(memory / 2**20, 1),
    }


async def _logged(url: str, credentials: Credentials) -> list[int]:
    """The number of each of the learner's messages, as the log has them."""
    async with Bus.connect(url, credentials) as bus:
        head = await bus.head(RUN)
        return [e.body.n async for e in bus.read(RUN, until=head) if isinstance(e.body, LearnerMessage)]


def _own(server: EmbeddedServer) -> list[psutil.Process]:
    """nats-server itself, below its guard."""
    found = psutil.Process(server.child.pid).children(recursive=True)
    return [process for process in found if "nats-server" in process.name()]


@contextlib.contextmanager
def _killed(server: EmbeddedServer) -> Iterator[None]:
    for process in _own(server):
        process.kill()
    yield


@contextlib.contextmanager
def _frozen(server: EmbeddedServer) -> Iterator[None]:
    frozen = _own(server)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in frozen:
            process.send_signal(signal.SIGCONT)


def bench(
    seconds: Annotated[float, Option(help="How long the bus is away.")] = 5.0,
    rate: Annotated[float, Option(help="Observations per second.")] = 1000.0,
    metrics: Annotated[int, Option(min=1, help="Gauges of an observation.")] = 25,
    freeze: Annotated[bool, Option("--freeze", help="SIGSTOP and SIGCONT instead of SIGKILL.")] = False,
    as_json: Json = False,
) -> int:
    if seconds <= 0 or rate <= 0:
        raise ConfigError(f"--seconds {seconds:g} and --rate {rate:g} must be above 0")
    found = asyncio.run(_measure(seconds, rate, metrics, freeze))
    print_object(found, as_json)
    wrong = [name for name in ("lost_acknowledged", "doubled", "out_of_order", "unaccounted") if found[name]]
    if wrong:
        print(f"the log does not hold what was said: {', '.join(wrong)} above 0", file=sys.stderr)
    return 1 if wrong else 0


BENCH = Bench(
    "outage",
    bench,
    "the bus is killed or frozen under load: what is lost, doubled, out of order, and what training notices",
    "--seconds 180 --json",
)

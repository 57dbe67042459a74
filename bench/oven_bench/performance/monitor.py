"""`bench monitor`: what the monitor costs, and how quickly it answers, in a real terminal on a real server.

The monitor runs as people start it, in a pseudo-terminal of 160×50, over a run that has 5,000 decisions behind it. Its
log comes from a generator at 20 and at 500 observations a second, with votes, decisions and receipts among them. CPU is
the monitor process's own (psutil), in per cent of one core; the floor beside it is the same monitor while nothing
happens. `load_average` says what else the machine did.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import psutil
from typer import Option

from oven_bench.study import Report, Study
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import ProcessError
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    Horizon,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    TallyLine,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.replica.service import serve_history
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded import EmbeddedServer

RUN = "bench"
LR = "optimizer.lr_scale"
AGENTS = ("curriculum", "lr", "prior")
COLUMNS, ROWS = 160, 50
GAUGES = 26
"""As many metrics as the GRPO recipe publishes."""
PAST = 1000
"""Observations that the log has before the monitor opens."""
DECISIONS = 5
"""Decisions at each of them."""


class Generator:
    """Writes a log as a learner, agents and a mesh would: a decision every 100 observations."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.on = Subjects(RUN)
        self.n = 0
        self.tick = 0

    async def _say(self, subject: str, body: bytes) -> None:
        await self.bus.publish(subject, body)

    def _learner(self) -> dict[str, int]:
        self.n += 1
        return {"incarnation": 1, "n": self.n}

    async def begin(self) -> None:
        spec = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0)
        metrics = (MetricSpec(name="reward", better="up"), MetricSpec(name="eval/accuracy", held_out=True))
        started = RunStarted(
            **self._learner(), recipe="bench", horizon=Horizon(max_steps=20_000), actuators=(spec,), metrics=metrics
        )
        await self._say(self.on.run, started.wire())
        for name in AGENTS:
            status = AgentStatus(state="joined", moves=(LR,), speciality=(LR,))
            await self._say(self.on.agent(name), status.wire())

    async def observe(self, decisions: int = 0) -> None:
        """An observation, and so many decisions with their votes and receipts."""
        self.tick += 1
        level = 1 - math.exp(-self.tick / 3000)
        metrics = {f"gauge/{n}": level + 0.1 * math.sin(self.tick * (n + 1)) for n in range(GAUGES - 5)}
        metrics |= {"reward": level, "loss": -level, "grad_norm": 1.0 + math.sin(self.tick), "learning_rate": 2e-5}
        if self.tick % 20 == 0:
            metrics["eval/accuracy"] = level
        seen = Observation(
            **self._learner(), tick=self.tick, step=self.tick, progress=min(1, self.tick / 20_000), metrics=metrics
        )
        await self._say(self.on.observation, seen.wire())
        for index in range(decisions):
            await self._decide(index)

    async def _decide(self, index: int) -> None:
        ballot = f"{self.tick:012d}-{index:02d}"
        value = 1.0 + self.tick % 7
        vote = Vote(actuator=LR, stance="propose", value=value, tick=self.tick, confidence=0.9, rationale="as measured")
        await self._say(self.on.vote("lr"), vote.wire())
        opened = BallotOpened(
            id=ballot,
            actuator=LR,
            proposal=value,
            opened_by="lr",
            tick=self.tick,
            closes_at_tick=self.tick + 3,
            eligible=AGENTS,
        )
        await self._say(self.on.ballot(ballot), opened.wire())
        tally = tuple(TallyLine(agent=name, stance="for", confidence=0.9, weight=0.9) for name in AGENTS)
        decision = Decision(
            id=ballot,
            ballot=ballot,
            actuator=LR,
            verdict="adopted",
            value=value,
            before=1.0,
            reason="three agents of three were for it",
            tally=tally,
            tick=self.tick,
            apply_at_tick=self.tick + 1,
            expires_at_tick=self.tick + 20,
        )
        await self._say(self.on.decision(ballot), decision.wire())
        receipt = Receipt(
            **self._learner(),
            decision_id=ballot,
            actuator=LR,
            status="applied",
            before=1.0,
            after=value,
            tick=self.tick,
            step=self.tick,
        )
        await self._say(self.on.receipt, receipt.wire())

    async def at(self, hz: float, seconds: float, decide: bool = True) -> None:
        """So many observations a second, in bursts of at most 20 ms, with a decision every 100 of them."""
        began, done = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            while done < passed * hz:
                await self.observe(int(decide and self.tick % 100 == 99))
                done += 1
            await asyncio.sleep(min(0.02, 1 / hz))


class Terminal:
    """A process in a pseudo-terminal. `said` grows with what it writes; `wrote` is set with every piece."""

    def __init__(self, command: list[str], env: dict[str, str], *, pass_fds: tuple[int, ...] = ()) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            pass_fds=pass_fds,
        )
        os.close(theirs)
        self.said = bytearray()
        self.wrote = asyncio.Event()
        os.set_blocking(self._fd, False)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            piece = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # the other side is closed
            piece = b""
        if not piece:
            asyncio.get_running_loop().remove_reader(self._fd)
        self.said += piece
        self.wrote.set()

    async def until(self, text: bytes, after: int = 0, limit_s: float = 30.0) -> float:
        """When `text` was first seen after a place in what it said. Raises ProcessError when it is not said in time."""
        deadline = time.monotonic() + limit_s
        while text not in self.said[after:]:
            self.wrote.clear()
            if (left := deadline - time.monotonic()) <= 0:
                raise ProcessError(
                    f"the monitor did not show {text!r} within {limit_s:g} s: {bytes(self.said[-300:])!r}"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.wrote.wait()
        return time.monotonic()

    def press(self, key: bytes) -> None:
        os.write(self._fd, key)

    async def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        await asyncio.to_thread(self.process.wait)
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)


def cpu_s(pid: int) -> float:
    """CPU that a process has had, in seconds: on a machine that others use it says more than the clock."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class Meter:
    """CPU of a process between two moments, in per cent of a core."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._cpu, self._wall = self._now()

    def _now(self) -> tuple[float, float]:
        times = self._process.cpu_times()
        return times.user + times.system, time.monotonic()

    def percent(self) -> float:
        cpu, wall = self._now()
        return round(100 * (cpu - self._cpu) / (wall - self._wall), 2)


async def measure(folder: RunFolder, home: Path, seconds: float, keys: int) -> dict[str, object]:
    found: dict[str, object] = {"load_average": round(os.getloadavg()[0], 2)}
    async with logged_run(folder) as bus:
        generator = Generator(bus)
        await generator.begin()
        for _ in range(PAST):
            await generator.observe(DECISIONS)
        await bus.flush()
        command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "monitor", RUN]
        terminal = Terminal(command, {**os.environ, "OVEN_HOME": str(home), "TERM": "xterm-256color"})
        try:
            found["first_paint_s"] = round(await terminal.until(RUN.encode()) - terminal.began, 3)
            found["first_paint_cpu_s"] = round(cpu_s(terminal.process.pid), 3)
            found["history_shown_s"] = round(await terminal.until(f"step {PAST}".encode()) - terminal.began, 3)
            await generator.at(20, 2)  # warm
            meter = Meter(terminal.process.pid)
            await asyncio.sleep(seconds / 2)
            found["cpu_percent_idle"] = meter.percent()
            meter = Meter(terminal.process.pid)
            await generator.at(20, seconds)
            found["cpu_percent_20hz"] = meter.percent()
            delays = await _keys(terminal, generator, keys)
            found["key_p50_ms"] = round(1000 * statistics.median(delays), 1)
            found["key_p95_ms"] = round(1000 * statistics.quantiles(delays, n=20)[-1], 1)
            before = await bus.head(RUN)
            meter = Meter(terminal.process.pid)
            await generator.at(500, seconds)
            found["cpu_percent_500hz"] = meter.percent()
            with contextlib.suppress(ProcessError):  # then it shows in `received_500hz`
                await terminal.until(f"tick {generator.tick}".encode(), limit_s=10)
            mark = len(terminal.said)
            terminal.press(b"q")
            await terminal.until(b"events were read", mark)
            counts = re.findall(rb"(\d+) events were read", bytes(terminal.said[mark:]))
            head = await bus.head(RUN)  # of what was sent, votes beyond the stream's limits never came so far
            found["received_500hz"] = round(1 - (head - int(counts[-1])) / (head - before), 4)
        finally:
            await terminal.close()
    return found


async def _keys(terminal: Terminal, generator: Generator, keys: int) -> list[float]:
    """Seconds from a key that moves the cursor to the bytes that draw the decision under it, while data arrives."""
    feeding = asyncio.create_task(generator.at(20, 3600, decide=False))
    delays = []
    try:
        for n in range(keys):
            await asyncio.sleep(0.05 + 0.013 * (n % 7))  # not in step with the feed
            mark, pressed = len(terminal.said), time.monotonic()
            terminal.press(b"k" if n % 2 == 0 else b"j")
            delays.append(await terminal.until(LR.encode(), mark) - pressed)
    finally:
        feeding.cancel()
    return delays


@contextlib.asynccontextmanager
async def logged_run(folder: RunFolder) -> AsyncIterator[Bus]:
    """A server with the run's streams, and the history service that a mesh replica would give."""
    for role in ("admin", "monitor"):
        folder.add_user(role, role)
    with folder.hold():
        server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
        folder.write_info(folder.info().model_copy(update={"url": server.url, "port": server.port}))
        try:
            admin = Credentials.load(folder.add_user("admin", "admin"))
            async with Bus.connect(server.url, admin) as bus, Bus.connect(server.url, admin) as service:
                await streams.create(bus.jetstream, RUN)
                await serve_history(service, RUN)
                yield bus
        finally:
            await server.stop()


def bench(
    seconds: Annotated[float, Option(help="Seconds of each measurement.")] = 15,
    keys: Annotated[int, Option(min=2, help="Number of key presses.")] = 100,
) -> Report:
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        found = asyncio.run(measure(home.create(RUN, "bench"), home.path, seconds, keys))
    return Report(found)


STUDY = Study("monitor", bench, "--json")

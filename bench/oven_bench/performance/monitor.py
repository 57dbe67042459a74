"""`bench monitor`: what does the monitor cost, and how quickly does it answer?

The monitor runs as people start it, in a pseudo-terminal of 160×50, on a real server and a run with 5,000 decisions.
A feed adds 20 and then 500 observations per second, with votes, decisions and receipts among them. CPU is the monitor
process's own (psutil), in per cent of one core; the baseline is the same monitor while nothing happens. `load_average`
shows what else the machine did.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
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
from dataclasses import replace
from pathlib import Path

import click
import psutil

from oven_bench.performance.example_run import SCALE, Entry, ExampleRun
from oven_bench.study import Report, Study
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import ProcessError
from oven_core.protocol.messages import Horizon
from oven_core.replica.replica_process import serve_history
from oven_core.security.credentials import Credentials
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.server.embedded_server import EmbeddedServer

RUN = "bench"
COLUMNS, ROWS = 160, 50
PAST = 1000
"""Observations in the log before the monitor opens."""
DECISIONS = 5
"""Decisions at each of them."""


class Feed:
    """Publishes an example run as a learner, agents and a mesh would."""

    def __init__(self, bus: Bus) -> None:
        self.tick = 0
        self._bus, self._run = bus, ExampleRun(RUN, slowness=3000)

    async def begin(self) -> None:
        for entry in self._run.begin(Horizon(max_steps=20_000)):
            await self._publish(entry)

    async def observe(self, decisions: int = 0) -> None:
        self.tick += 1
        await self._publish(self._run.observation(self.tick))
        for index in range(decisions):
            for entry in self._run.decision(self.tick, index, before=1.0, value=1.0 + self.tick % 7):
                await self._publish(entry)

    async def run(self, hz: float, seconds: float, decide: bool = True) -> None:
        """Publish at a rate, in bursts of at most 20 ms, with a decision every 100 observations."""
        start, done = time.monotonic(), 0
        while (elapsed := time.monotonic() - start) < seconds:
            while done < elapsed * hz:
                await self.observe(int(decide and self.tick % 100 == 99))
                done += 1
            await asyncio.sleep(min(0.02, 1 / hz))

    async def _publish(self, entry: Entry) -> None:
        await self._bus.publish(entry.subject, entry.message.wire())


class Terminal:
    """A process in a pseudo-terminal. `output` grows with what it writes."""

    def __init__(self, command: list[str], env: dict[str, str], *, pass_fds: tuple[int, ...] = ()) -> None:
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True, pass_fds=pass_fds
        )
        os.close(theirs)
        self.output = bytearray()
        self._wrote = asyncio.Event()
        os.set_blocking(self._fd, False)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            piece = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # the process closed its side
            piece = b""
        if not piece:
            asyncio.get_running_loop().remove_reader(self._fd)
        self.output += piece
        self._wrote.set()

    async def until(self, text: bytes, after: int = 0, limit_s: float = 30.0) -> float:
        """Wait until `text` is in the output behind a position, and return the time. Raises ProcessError."""
        deadline = time.monotonic() + limit_s
        while text not in self.output[after:]:
            self._wrote.clear()
            if (remaining_s := deadline - time.monotonic()) <= 0:
                raise ProcessError(
                    f"the monitor did not show {text!r} within {limit_s:g} s: {bytes(self.output[-300:])!r}"
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._wrote.wait()
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
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


class CpuMeter:
    """CPU of a process since the meter was made, in per cent of a core."""

    def __init__(self, pid: int) -> None:
        self._pid, self._cpu, self._wall = pid, cpu_s(pid), time.monotonic()

    def percent(self) -> float:
        return round(100 * (cpu_s(self._pid) - self._cpu) / (time.monotonic() - self._wall), 2)


async def measure(folder: RunFolder, home: Path, seconds: float, keys: int) -> dict[str, object]:
    figures: dict[str, object] = {"load_average": round(os.getloadavg()[0], 2)}
    async with served_run(folder) as bus:
        feed = Feed(bus)
        await feed.begin()
        for _ in range(PAST):
            await feed.observe(DECISIONS)
        await bus.flush()
        command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "monitor", RUN]
        terminal = Terminal(command, {**os.environ, "OVEN_HOME": str(home), "TERM": "xterm-256color"})
        pid = terminal.process.pid
        try:
            figures["first_paint_s"] = round(await terminal.until(RUN.encode()) - terminal.start, 3)
            figures["first_paint_cpu_s"] = round(cpu_s(pid), 3)
            figures["history_shown_s"] = round(await terminal.until(f"step {PAST}".encode()) - terminal.start, 3)
            await feed.run(20, 2)  # warm-up
            meter = CpuMeter(pid)
            await asyncio.sleep(seconds / 2)
            figures["cpu_percent_idle"] = meter.percent()
            meter = CpuMeter(pid)
            await feed.run(20, seconds)
            figures["cpu_percent_20hz"] = meter.percent()
            delays = await _key_delays(terminal, feed, keys)
            figures["key_p50_ms"] = round(1000 * statistics.median(delays), 1)
            figures["key_p95_ms"] = round(1000 * statistics.quantiles(delays, n=20)[-1], 1)
            before = await bus.head(RUN)
            meter = CpuMeter(pid)
            await feed.run(500, seconds)
            figures["cpu_percent_500hz"] = meter.percent()
            with contextlib.suppress(ProcessError):  # what was lost shows in `received_500hz`
                await terminal.until(f"tick {feed.tick}".encode(), limit_s=10)
            mark = len(terminal.output)
            terminal.press(b"q")
            await terminal.until(b"events read", mark)
            counts = re.findall(rb"(\d+) events read", bytes(terminal.output[mark:]))
            head = await bus.head(RUN)  # the stream's limits drop votes, which then do not count
            figures["received_500hz"] = round(1 - (head - int(counts[-1])) / (head - before), 4)
        finally:
            await terminal.close()
    return figures


async def _key_delays(terminal: Terminal, feed: Feed, keys: int) -> list[float]:
    """Seconds from a key that moves the cursor to the bytes that draw the decision under it, while data arrives."""
    feeding = asyncio.create_task(feed.run(20, 3600, decide=False))
    delays = []
    try:
        for n in range(keys):
            await asyncio.sleep(0.05 + 0.013 * (n % 7))  # not in step with the feed
            mark, pressed = len(terminal.output), time.monotonic()
            terminal.press(b"k" if n % 2 == 0 else b"j")
            delays.append(await terminal.until(SCALE.encode(), mark) - pressed)
    finally:
        feeding.cancel()
    return delays


@contextlib.asynccontextmanager
async def served_run(folder: RunFolder) -> AsyncIterator[Bus]:
    """A server with the run's streams, and the history service that a mesh replica provides."""
    for role in ("admin", "monitor"):
        folder.add_user(role, role)
    with folder.hold():
        server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
        folder.write_info(replace(folder.info(), url=server.url, port=server.port))
        try:
            admin = Credentials.load(folder.add_user("admin", "admin"))
            async with Bus.connect(server.url, admin) as bus, Bus.connect(server.url, admin) as service:
                await streams.create(bus.jetstream, RUN)
                await serve_history(service, RUN)
                yield bus
        finally:
            await server.stop()


@click.option("--seconds", type=float, default=15, help="Seconds of each measurement.")
@click.option("--keys", type=click.IntRange(min=2), default=100, help="Number of key presses.")
def bench(seconds: float, keys: int) -> Report:
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        return Report(asyncio.run(measure(home.create(RUN, "bench"), home.path, seconds, keys)))


STUDY = Study("monitor", bench, "--json")

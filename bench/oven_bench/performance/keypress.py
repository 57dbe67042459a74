"""`bench keypress`: from the key that gives a command in the monitor to its receipt on the screen, on a live run.

The monitor runs as people start it, with `--control`, in a pseudo-terminal; server, mesh and the learner's client are
the product's, and the learner's steps take a fixed time. Each round sets a knob to another value. The floor beside the
delay is what a command has to wait for in any case: the step that is under way and the next, two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated

import psutil
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.monitor import Terminal
from oven_bench.performance.stack_under_test import RUN, Learner, Swarm, started
from oven_core.errors import ProcessError
from oven_runs.home.run_folder import Home, RunFolder

BOUNDARIES = 2
POLL_S = 0.005
LIMIT_S = 60.0
RECEIPT = re.compile("✔ step (\\d+)".encode())
"""In the row of a command."""
BETWEEN_S = 0.05
"""Between two keys of one round, in seconds, as a quick typist's: a page has to be there before it hears a key."""


class SteadyLearner:
    """A learner in its thread whose steps take a fixed time."""

    def __init__(self, swarm: Swarm, step_s: float) -> None:
        self._learner = Learner(swarm)
        self._step_s = step_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._train, name="bench-learner")

    @property
    def tick(self) -> int:
        return self._learner.client.tick

    def __enter__(self) -> SteadyLearner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _train(self) -> None:
        client = self._learner.client
        client.start()
        due = time.monotonic()
        while not self._over.is_set():
            due += self._step_s
            self._over.wait(max(0.0, due - time.monotonic()))
            self._learner.observe(False)
            client.poll()
        client.close("stopped")


async def measure(folder: RunFolder, home: Path, step_s: float, rounds: int) -> dict[str, object]:
    for role in ("operator", "monitor"):
        folder.server.add_user(role, role)
    load = os.getloadavg()[0]
    with folder.hold():
        async with started(folder, [], None) as swarm:
            folder.write_info(folder.info().model_copy(update={"url": swarm.url}))
            with SteadyLearner(swarm, step_s) as learner:
                command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "monitor", RUN, "--control"]
                terminal = Terminal(command, {**os.environ, "OVEN_HOME": str(home), "TERM": "xterm-256color"})
                try:
                    await terminal.until(b"live", limit_s=120)
                    delays, ticks, cpu = await _rounds(terminal, learner, rounds)
                finally:
                    await terminal.close()
    over = [1000 * (delay - BOUNDARIES * step_s) for delay in delays]
    return {
        "load_average": round(load, 2),
        "step_ms": round(1000 * step_s),
        "rounds": rounds,
        "receipt_p50_ms": round(1000 * statistics.median(delays), 1),
        "receipt_max_ms": round(1000 * max(delays), 1),
        "floor_two_steps_ms": round(BOUNDARIES * 1000 * step_s),
        "beyond_two_steps_p50_ms": round(statistics.median(over), 1),
        "beyond_two_steps_max_ms": round(max(over), 1),
        "monitor_cpu_p50_ms": round(1000 * statistics.median(cpu), 1),
        "ticks_p50": statistics.median(ticks),
        "ticks_max": max(ticks),
    }


async def _rounds(
    terminal: Terminal, learner: SteadyLearner, rounds: int
) -> tuple[list[float], list[int], list[float]]:
    """Each round's delay in seconds, how many steps ended meanwhile, and the monitor's process CPU in seconds, which
    says what the delay would be where nothing else takes the core."""
    delays, ticks, cpu = list[float](), list[int](), list[float]()
    process = psutil.Process(terminal.process.pid)
    for number in range(rounds + 1):
        value = f"{1 + (number + 1) / 1000:.3f}"
        terminal.press(b"e")
        await terminal.until(b"set which knob", len(terminal.said))
        terminal.press(b"\r")
        await terminal.until(b"set it", len(terminal.said))
        for character in value:
            terminal.press(character.encode())
            await asyncio.sleep(BETWEEN_S)
        mark, tick, used, pressed = len(terminal.said), learner.tick, _cpu_s(process), time.monotonic()
        terminal.press(b"\r")
        delay = await _receipt(terminal, mark, tick) - pressed
        if number:  # the first warms up
            delays.append(delay)
            ticks.append(learner.tick - tick)
            cpu.append(_cpu_s(process) - used)
        await asyncio.sleep(number % 7 * POLL_S)  # anywhere in a step
    return delays, ticks, cpu


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _receipt(terminal: Terminal, mark: int, tick: int) -> float:
    """When a row shows a receipt of a step after `tick`; the learner's steps are its ticks. Raises ProcessError."""
    deadline = time.monotonic() + LIMIT_S
    while not any(int(step) > tick for step in RECEIPT.findall(terminal.said[mark:])):
        terminal.wrote.clear()
        if time.monotonic() > deadline:
            raise ProcessError(f"the monitor showed no receipt within {LIMIT_S:g} s: {bytes(terminal.said[-300:])!r}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await terminal.wrote.wait()
    return time.monotonic()


def bench(
    step_ms: Annotated[float, Option(min=1, help="How long a step of the learner takes.")] = 200,
    rounds: Annotated[int, Option(min=1, help="Commands that are measured.")] = 40,
    as_json: Json = False,
) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        found = asyncio.run(measure(home.create(RUN, "bench"), home.path, step_ms / 1000, rounds))
    print_object(found, as_json)
    return 0


BENCH = Bench("keypress", bench, "from a key in the monitor to the receipt of its command on the screen", "--json")

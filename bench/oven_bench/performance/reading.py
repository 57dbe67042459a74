"""`bench reading`: how long do the commands that read a log take on a long run and on a short one?

Each figure is the wall time of a whole new process, the median of --repeats. The log is in the page cache. Before
each `first_…_s`, the run has no cache. The floors are the time to read the file's bytes, and to decode each line
with json.loads, in this process. Every command's output with a cache is compared with its output without one.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import click

from oven_bench.performance.decided_run import DecidedRun
from oven_bench.performance.example_run import SCALE
from oven_bench.study import Report, Study, home_folder, home_option
from oven_core.errors import ProcessError
from oven_runs.access.log_cache import FILE
from oven_runs.home.run_folder import Home, RunFolder

SMALL_EVENTS: Final = 300
COMMANDS: Final = {
    "status": ("status",),
    "decisions": ("decisions",),
    "explain": ("explain", SCALE),
    "log_last": ("log", "--last", "100"),
    "replay": ("replay",),
}
CACHED: Final = ("status", "decisions", "explain")
"""The commands that use the log's cache."""
CONSOLE_SCRIPT: Final = "from oven_controller.cli.console_script import run; run()"
READ_BYTES: Final = 1 << 20


def output(folder: RunFolder, home: Path, command: tuple[str, ...]) -> str:
    """Run a command on a run, and return what it prints. Raises ProcessError if it fails."""
    argv = [sys.executable, "-P", "-c", CONSOLE_SCRIPT, *command, "--run", folder.run]
    result = subprocess.run(argv, env={**os.environ, "OVEN_HOME": str(home)}, capture_output=True, text=True)
    if result.returncode:
        raise ProcessError(f"`{' '.join(argv[4:])}` failed with exit code {result.returncode}: {result.stderr}")
    return result.stdout


def seconds(repeats: int, call: Callable[[], object]) -> float:
    """Return the median of the wall times of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(median(times), 3)


def read_bytes(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(READ_BYTES):
            pass


def decode_lines(path: Path) -> None:
    with path.open("rb") as file:
        for line in file:
            json.loads(line)


def make_run(home: Home, events: int) -> RunFolder:
    """Return the run with this number of events, which is written if it does not exist."""
    name = f"reading-{events}"
    for folder in home.runs():
        if folder.run == name:
            return folder
    print(f"writing a log of {events} events", file=sys.stderr)
    folder = home.create(name, "bench")
    DecidedRun(folder).write(events)
    return folder


def measure(home: Home, events: int, repeats: int) -> dict[str, object]:
    long, small = make_run(home, events), make_run(home, SMALL_EVENTS)
    path = long.export
    figures: dict[str, object] = {"events": events, "megabytes": round(path.stat().st_size / 1e6)}
    figures["read_bytes_s"] = seconds(repeats, lambda: read_bytes(path))
    figures["json_loads_s"] = seconds(1, lambda: decode_lines(path))
    expected: dict[str, str] = {}
    for name in CACHED:
        (long.path / FILE).unlink(missing_ok=True)
        start = time.perf_counter()
        expected[name] = output(long, home.path, COMMANDS[name])
        figures[f"first_{name}_s"] = round(time.perf_counter() - start, 3)
    for name, command in COMMANDS.items():
        call = functools.partial(output, long, home.path, command)
        figures[f"{name}_s"] = seconds(1 if name == "replay" else repeats, call)
    figures["same_output"] = all(output(long, home.path, COMMANDS[name]) == text for name, text in expected.items())
    figures["cache_megabytes"] = 0.0
    if (long.path / FILE).exists():  # a short log has none
        figures["cache_megabytes"] = round((long.path / FILE).stat().st_size / 1e6, 1)
    for name, command in COMMANDS.items():
        figures[f"small_{name}_s"] = seconds(repeats, functools.partial(output, small, home.path, command))
    return figures


@click.option("--events", type=click.IntRange(min=1000), default=1_000_000, help="Events of the long log.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Processes per figure.")
@home_option
def bench(events: int, repeats: int, home: Path | None) -> Report:
    with home_folder(home) as path:
        figures = measure(Home(path), events, repeats)
    failures = [] if figures["same_output"] else ["a command prints something else with a cache"]
    return Report(figures, failures=failures)


STUDY = Study("reading", bench, "--events 100000 --json")

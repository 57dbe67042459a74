"""`bench opening`: how long does the monitor take to open a long run, and where does the time go?

The monitor runs in a pseudo-terminal on the signed log of a run that has ended. The bench measures when it shows the
run's name, then a preview with the newest step, then the whole verified log, and the peak of its memory. `floor` is the
same for a log of 100 events. The parts are CPU microseconds per event of the same code on the log's first events. A
list of 300 runs is read for the first time, read again from its cache, and refreshed once, as it is every two seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import click
import psutil

from oven_bench.performance.example_run import LongLog
from oven_bench.performance.monitor import Terminal
from oven_bench.study import Report, Study, home_folder, home_option
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.home.run_rows import RunRows
from oven_tui.model.monitor_view import MonitorView

FLOOR_EVENTS = 100
PART_EVENTS = 20_000
LIMIT_S = 1200.0
LISTED, LISTED_BYTES = 300, 2 << 20
"""Number of runs in the list, and bytes of each one's log, some 3,000 events."""
POLL_S = 0.1


class Use:
    """Peak resident memory in MB, and CPU seconds so far, of a process with its children."""

    def __init__(self, pid: int) -> None:
        self.mb = self.cpu_s = 0.0
        self._process = psutil.Process(pid)

    def look(self) -> None:
        try:
            every = (self._process, *self._process.children(recursive=True))
            self.mb = max(self.mb, sum(process.memory_info().rss for process in every) / 1e6)
            times = [process.cpu_times() for process in every]
            self.cpu_s = sum(process.user + process.system for process in times)
        except psutil.Error:
            return  # one of them has just ended

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(POLL_S)


async def opened(folder: RunFolder, home: Path, events: int) -> dict[str, float]:
    """Seconds until the monitor shows the run's name, the newest step, and the number of all decisions."""
    command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "monitor", folder.run]
    terminal = Terminal(command, {**os.environ, "OVEN_HOME": str(home), "TERM": "xterm-256color"})
    use = Use(terminal.process.pid)
    watching = asyncio.create_task(use.watch())
    last, adopted = f"step {LongLog.last_step(events)}", f" {LongLog.decisions(events)} adopted"
    try:
        figures = {"first_paint_s": await terminal.until(folder.run.encode(), limit_s=LIMIT_S) - terminal.start}
        use.look()
        figures["first_paint_cpu_s"] = use.cpu_s
        figures["opened_s"] = await terminal.until(last.encode(), limit_s=LIMIT_S) - terminal.start
        use.look()
        figures["opened_cpu_s"] = use.cpu_s
        figures["checked_s"] = await terminal.until(adopted.encode(), limit_s=LIMIT_S) - terminal.start
        use.look()
        figures["checked_cpu_s"] = use.cpu_s
        figures["memory_mb"] = use.mb
        mark = len(terminal.output)
        terminal.press(b"q")
        await terminal.until(b"events read", mark)
    finally:
        watching.cancel()
        await terminal.close()
    return {name: round(value, 2) for name, value in figures.items()}


def parts(folder: RunFolder) -> dict[str, float]:
    """CPU microseconds per event to read and decode it, to check its signature, and to fold it."""
    began = time.process_time()
    events = list(islice(LogFile(folder), PART_EVENTS))
    read = time.process_time()
    keyring = Keyring(folder.pin())
    verified = [keyring.verify(event) for event in events]
    checked = time.process_time()
    view = MonitorView()
    for event in verified:
        view.feed(event)
    folded = time.process_time()
    spans = {"decode_us": read - began, "signature_us": checked - read, "fold_us": folded - checked}
    return {name: round(1e6 * span / len(events), 1) for name, span in spans.items()}


def listed(folder: RunFolder, scratch: Path) -> dict[str, float]:
    """CPU milliseconds to read LISTED runs for the first time, to read them from the cache, and to refresh them."""
    home = Home(scratch)
    data = folder.export.read_bytes()[:LISTED_BYTES]
    for number in range(LISTED):
        home.create(f"run-{number}", "bench").export.write_bytes(data)
    figures: dict[str, float] = {}
    for name in ("list_cold_ms", "list_again_ms"):
        began, rows = time.process_time(), RunRows(home)
        rows.refresh()
        for _ in rows.advance():
            pass
        rows.save()
        figures[name] = round(1000 * (time.process_time() - began), 1)
    began = time.process_time()
    rows.refresh()
    return figures | {"list_look_ms": round(1000 * (time.process_time() - began), 1)}


def made(home: Home, run: str, events: int, tell: Callable[[str], object]) -> RunFolder:
    """The run with so many events, which is written if it does not exist."""
    folder = next((folder for folder in home.runs() if folder.run == run), None)
    if folder is None:
        tell(f"writing a log of {events} events")
        folder = home.create(run, "bench")
        LongLog(folder).write(events)
    return folder


async def measure(home: Home, events: int, tell: Callable[[str], object]) -> dict[str, object]:
    long, floor = made(home, f"long-{events}", events, tell), made(home, "floor", FLOOR_EVENTS, tell)
    figures: dict[str, object] = {"events": events, "megabytes": round(long.export.stat().st_size / 1e6)}
    figures["floor"] = await opened(floor, home.path, FLOOR_EVENTS)
    figures["long"] = await opened(long, home.path, events)
    with tempfile.TemporaryDirectory() as scratch:
        figures |= {"listed_runs": LISTED, **listed(long, Path(scratch) / "home")}
    return figures | parts(long)


@click.option("--events", type=click.IntRange(min=10_000), default=1_000_000, help="Events of the long log.")
@home_option
def bench(events: int, home: Path | None) -> Report:
    with home_folder(home) as path:
        return Report(asyncio.run(measure(Home(path), events, lambda line: print(line, file=sys.stderr))))


STUDY = Study("opening", bench, "--events 100000 --json")

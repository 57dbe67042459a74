"""The stack's process that computes gauges from the log, for Prometheus and for an OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oven_controller.exporting.export_state import READY_FILE
from oven_controller.exporting.log_follower import follow_log
from oven_controller.exporting.to_prometheus import serve
from oven_core.cancellation import end, on_termination
from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_core.telemetry import tracing
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.gauges import FAMILIES, Gauges, Sample

if TYPE_CHECKING:
    from oven_core.telemetry.otlp_metrics import MetricsSender

CLOSE_S: Final = 2.0
"""Timeout in seconds for the last values, when the stack stops."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long the thread that reads the log may keep a scrape waiting. Python's default is 5 ms."""


def main(_: list[str]) -> int:
    """Serve and send the gauges of the run in $OVEN_RUN_DIR. Raises OvenError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(publish(RunFolder(Path(os.environ["OVEN_RUN_DIR"]))))
    return 0


async def publish(folder: RunFolder) -> None:
    """Follow the run's log until the stack is down, or until a signal. Raises OvenError."""
    gauges, stop = Gauges(), asyncio.Event()
    snapshot: list[Sample] = []
    """The values at the last end of the log. The edges read them in other threads."""
    on_termination(stop.set)

    def take_snapshot() -> None:
        nonlocal snapshot
        snapshot = list(gauges.samples())

    async def follow() -> None:
        async for event in follow_log(LocalRun(folder), take_snapshot):
            gauges.feed(event)
        take_snapshot()

    with contextlib.ExitStack() as edges:
        port = folder.earlier_settings().get("metrics_port")
        if port is not None:
            port = edges.enter_context(serve(folder.run, lambda: snapshot, port))
        if url := os.environ.get(tracing.VARIABLE, ""):
            edges.callback(_create_sender(folder.run, url, lambda: snapshot).close, CLOSE_S)
        write_atomic(folder.path / READY_FILE, f"{'' if port is None else port}\n")
        follow_task = asyncio.create_task(follow(), name="follow")
        stop_task = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({follow_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        if follow_task.done():
            follow_task.result()
        await end(follow_task, stop_task)


def _create_sender(run: str, url: str, read: Callable[[], list[Sample]]) -> MetricsSender:
    try:
        from oven_core.telemetry.otlp_metrics import MetricsSender
    except ImportError as error:
        raise ConfigError(
            f"metrics should go to {url}, but OpenTelemetry is not installed ({error.name}): "
            '`pip install "oven-controller[otel]"`, or omit --otlp'
        ) from error

    def read_series(name: str) -> list[tuple[dict[str, str], float]]:
        return [(labels, value) for family, labels, value in read() if family.name == name]

    return MetricsSender(run, url, {family.name: (family.kind, family.help) for family in FAMILIES}, read_series)

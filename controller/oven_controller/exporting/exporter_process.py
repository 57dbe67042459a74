"""Entry point of an exporter process of the stack, and the preparation that it shares with the command `export`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from oven_controller.exporting import export_state
from oven_controller.exporting.exporter import run_exporter
from oven_controller.exporting.target import ExportedRun, Target, check_target, create_target
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder


def main(arguments: list[str]) -> int:
    """Export the run in $OVEN_RUN_DIR to the target that the argument names. Raises OvenError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    (name,) = arguments
    folder = RunFolder(Path(os.environ["OVEN_RUN_DIR"]))
    with locked_target(folder, name) as target:
        asyncio.run(run_exporter(LocalRun(folder), name, target))
    return 0


@contextlib.contextmanager
def locked_target(folder: RunFolder, name: str) -> Iterator[Target]:
    """Create a target for the run, and keep other exporters away. Raises UnknownNameError and ConfigError."""
    check_target(name)
    with export_state.lock(folder.path, name) as own_folder:
        yield create_target(name, ExportedRun(folder.run, folder.info().created, folder.earlier_settings(), own_folder))

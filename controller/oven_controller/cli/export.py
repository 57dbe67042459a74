"""The command `export`, which copies a run to an experiment tracker or to files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import click

from oven_controller.cli.options import DEFAULT_RUN, exit_if_incomplete, run_argument
from oven_core.errors import ConfigError
from oven_core.terminal_text import say
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home


@click.command()
@run_argument(DEFAULT_RUN)
@click.option(
    "--to",
    "targets",
    required=True,
    multiple=True,
    metavar="TARGET",
    help="mlflow, parquet, tensorboard, trackio or wandb.",
)
def export(run: str | None, targets: Sequence[str]) -> None:
    """Export a run: its metrics, and its decisions, receipts, outcomes and findings as events. A running run is
    followed until it ends or Ctrl-C. A repeated export continues where the last one ended.

    Exit code 2 if the target refuses the run, for example with wrong credentials, and 3 if it does not answer.

    Example: oven-controller export grpo-1121-0231 --to tensorboard
    """
    from oven_controller.exporting.exporter import run_exporter
    from oven_controller.exporting.exporter_process import locked_target

    if len(targets) > 1:
        raise ConfigError(
            f"--to was given {len(targets)} times ({', '.join(targets)}); run one `export` for each target"
        )
    (to,) = targets
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("oven.export").setLevel(logging.INFO)
    folder = Home().find(run)
    access = LocalRun(folder)
    with locked_target(folder, to) as target:
        if access.is_up():
            say(f"run {folder.run} is up: exporting until it ends; press Ctrl-C to stop", flush=True)
        count = asyncio.run(run_exporter(access, to, target))
        say(f"{folder.run}: {count:,} new rows in {target.destination}")
    exit_if_incomplete(access)

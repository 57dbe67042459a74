"""The commands `runs`, `runs rm` and `runs prune`, which list runs and remove finished ones."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.filesize import decimal

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunsAlias, print_table, several_runs
from oven_core.errors import ConfigError, reason
from oven_runs.access.run_access import warn
from oven_runs.home import run_removal
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.home.run_listing import listed_runs
from oven_runs.home.run_removal import named_runs, old_runs

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

runs_command = typer.Typer(invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False)


@runs_command.callback()
def runs(context: typer.Context, as_json: Json = False) -> None:
    """List the runs in $OVEN_HOME, newest first. `runs rm` and `runs prune` remove runs.

    Example: oven-controller runs --json
    """
    if context.invoked_subcommand is not None:
        return
    home = Home()
    rows = listed_runs(home, _warn_about_unreadable)
    if as_json:
        print(json.dumps([row.model_dump() for row in rows]))
    elif not rows:
        print(f"no runs in {home.path} yet; `oven-controller up` starts one")
    else:
        cells = ((row.run, row.status, row.recipe, row.start, row.created[:16].replace("T", " ")) for row in rows)
        print_table(("run", "status", "recipe", "start", "created"), cells)


def _warn_about_unreadable(run: str, error: PermissionError) -> None:
    warn(f"run {run} is not listed, because only another user may read it ({reason(error)})")


@runs_command.command()
def rm(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Run names.", autocompletion=completion.runs)
    ] = None,
    runs_: RunsAlias = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove runs with their logs, checkpoints and keys. A run that is still up is not removed.

    Exit code 1 if you answer no.

    Example: oven-controller runs rm grpo-1121-0231
    """
    _remove(named_runs(Home(), several_runs(runs, runs_)), yes, as_json)


@runs_command.command()
def prune(
    keep: Annotated[int | None, typer.Option(metavar="N", help="Keep the N newest runs.")] = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", help="Keep runs that changed in the last DAYS days.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove old runs. With both options, a run is removed if neither keeps it. A run that is up is always kept.

    Exit code 1 if you answer no.

    Example: oven-controller runs prune --keep 10 --older-than 30
    """
    if keep is None and older_than is None:
        raise ConfigError("`prune` needs to know which runs to keep; add --keep N, --older-than DAYS, or both")
    if keep is not None and keep < 0:
        raise ConfigError(f"--keep {keep} is negative; use e.g. --keep 10")
    if older_than is not None and not 0 <= older_than < math.inf:
        raise ConfigError(f"--older-than {older_than:g} is not a valid number of days; use e.g. --older-than 30")
    _remove(old_runs(Home(), keep or 0, older_than or 0.0, datetime.now(UTC)), yes, as_json)


def _remove(folders: Sequence[RunFolder], yes: bool, as_json: bool) -> None:
    """Ask for confirmation, remove the runs and print the freed space."""
    run_removal.check_removable(folders)
    sizes = {folder.run: run_removal.disk_usage(folder) for folder in folders}
    if folders and not yes:
        _confirm(sizes)
    for folder in folders:
        run_removal.remove(folder)
        if not as_json:
            print(f"removed {folder.run} ({decimal(sizes[folder.run])})", flush=True)
    freed_bytes = sum(sizes.values())
    if as_json:
        removed = [{"run": run, "bytes": size} for run, size in sizes.items()]
        print(json.dumps({"removed": removed, "freed_bytes": freed_bytes}))
    elif len(folders) != 1:
        print(f"{decimal(freed_bytes)} freed" if folders else "nothing to remove")


def _confirm(sizes: dict[str, int]) -> None:
    """Ask for confirmation on stderr, because stdout may be JSON. Exit with code 1 if the answer is no. Raises
    ConfigError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"removing {', '.join(sizes)} needs confirmation, but stdin is not a terminal; add --yes")
    for run, size in sizes.items():
        print(f"  {run}  {decimal(size)}", file=sys.stderr)
    count = f"{len(sizes)} runs" if len(sizes) > 1 else "this run"
    if not typer.confirm(f"Remove {count} ({decimal(sum(sizes.values()))})?", err=True):
        print("nothing was removed", file=sys.stderr)
        raise typer.Exit(1)

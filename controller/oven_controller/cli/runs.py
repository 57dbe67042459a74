"""The commands `runs`, `runs rm` and `runs prune`, which list runs and remove finished ones."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click

from oven_controller.cli.options import json_option, print_table, runs_argument
from oven_core.errors import ConfigError, reason
from oven_core.terminal_text import warn
from oven_runs.home import run_removal
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.home.run_listing import listed_runs
from oven_runs.home.run_removal import named_runs, old_runs

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def runs(ctx: click.Context, as_json: bool) -> None:
    """List the runs in $OVEN_HOME, newest first. `runs rm` and `runs prune` remove runs.

    Example: oven-controller runs --json
    """
    if ctx.invoked_subcommand is not None:
        return
    home = Home()
    rows = listed_runs(home, _warn_about_unreadable)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    elif not rows:
        print(f"no runs in {home.path} yet; `oven-controller up` starts one")
    else:
        cells = ((row.run, row.status, row.recipe, row.start, row.created[:16].replace("T", " ")) for row in rows)
        print_table(("run", "status", "recipe", "start", "created"), cells)


def _warn_about_unreadable(run: str, error: PermissionError) -> None:
    warn(f"run {run} is not listed, because only another user may read it ({reason(error)})")


@runs.command()
@runs_argument("Run names.")
@yes_option
@json_option
def rm(runs: list[str], yes: bool, as_json: bool) -> None:
    """Remove runs with their logs, checkpoints and keys. A run that is still up is not removed.

    Exit code 1 if you answer no.

    Example: oven-controller runs rm grpo-1121-0231
    """
    _remove(named_runs(Home(), runs), yes, as_json)


@runs.command()
@click.option("--keep", type=int, metavar="N", help="Keep the N newest runs.")
@click.option("--older-than", type=float, metavar="DAYS", help="Keep runs that changed in the last DAYS days.")
@yes_option
@json_option
def prune(keep: int | None, older_than: float | None, yes: bool, as_json: bool) -> None:
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
            print(f"removed {folder.run} ({_size_text(sizes[folder.run])})", flush=True)
    freed_bytes = sum(sizes.values())
    if as_json:
        removed = [{"run": run, "bytes": size} for run, size in sizes.items()]
        print(json.dumps({"removed": removed, "freed_bytes": freed_bytes}))
    elif len(folders) != 1:
        print(f"{_size_text(freed_bytes)} freed" if folders else "nothing to remove")


def _confirm(sizes: dict[str, int]) -> None:
    """Ask for confirmation on stderr, because stdout may be JSON. Exit with code 1 if the answer is no. Raises
    ConfigError without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(f"removing {', '.join(sizes)} needs confirmation, but stdin is not a terminal; add --yes")
    for run, size in sizes.items():
        print(f"  {run}  {_size_text(size)}", file=sys.stderr)
    count = f"{len(sizes)} runs" if len(sizes) > 1 else "this run"
    if not click.confirm(f"Remove {count} ({_size_text(sum(sizes.values()))})?", err=True):
        print("nothing was removed", file=sys.stderr)
        raise click.exceptions.Exit(1)


def _size_text(size: int) -> str:
    """Return a number of bytes in units of a thousand, a million, or a billion bytes."""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"

"""The `import` command: convert another program's training logs to a run, to watch it and to try agents on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from oven_controller.cli import completion
from oven_controller.cli.options import PATH, argument, json_option, print_result
from oven_core.errors import ConfigError
from oven_core.terminal_text import counted, wrapped
from oven_runs.home.run_folder import Home

MAX_COLUMNS = 8
"""Maximum number of columns in the line that says which were recognized."""
rename_option = click.option(
    "--rename",
    multiple=True,
    metavar="FROM=TO",
    help="Rename a column to the name that agents use, e.g. train/nll=loss. X=step selects the step column.",
)
knob_option = click.option(
    "--knob",
    multiple=True,
    metavar="NAME[=VALUE]",
    shell_complete=completion.votable_knobs,
    help="Announce a knob that the logs do not have, e.g. grad.clip=1, so that agents can propose for it.",
)


@click.command()
@argument(
    "source",
    type=PATH,
    help="trainer_state.json or a folder with checkpoints, TensorBoard event files, a W&B offline run, a history as "
    "CSV, JSONL, or JSON, or the text that the training printed.",
)
@click.option("--run", "-r", metavar="NAME", help="Name of the new run.")
@rename_option
@knob_option
@json_option
def import_(source: Path, run: str | None, rename: Sequence[str], knob: Sequence[str], as_json: bool) -> None:
    """Import another program's training logs as a run, to watch it and to backtest agents on it.

    Example: oven-controller import outputs/checkpoint-2000 --run last-month
    """
    from oven_controller.importing.declared_knobs import parse_knobs
    from oven_controller.importing.import_run import import_run

    summary = import_run(source, Home(), run, parse_renames(rename), parse_knobs(knob))
    print_result(as_json, summary, _summary_lines(summary))


def parse_renames(pairs: Sequence[str]) -> dict[str, str]:
    """Parse FROM=TO strings. Return the new name of each column. Raises ConfigError for an invalid string."""
    new_names = {}
    for pair in pairs:
        column, _, name = pair.rpartition("=")
        if not column or not name:
            raise ConfigError(f"--rename {pair!r} is not FROM=TO; write e.g. --rename critic/rewards/mean=reward")
        new_names[column] = name
    return new_names


def resumed_text(incarnations: int) -> str:
    """Return how often the steps restart, e.g. `, steps restart twice`, or an empty string if they do not."""
    resumes = incarnations - 1
    times = {1: "once", 2: "twice"}.get(resumes, f"{resumes} times")
    return f", steps restart {times}" if resumes > 0 else ""


def recognized_text(summary: dict[str, Any]) -> str:
    """Return a line that says from which columns the step and the main metrics come."""
    columns = list(summary["columns"].items())
    shown = [f"{metric} = {column}" if metric != column else metric for metric, column in columns[:MAX_COLUMNS]]
    more = f", and {counted(len(columns) - MAX_COLUMNS, 'more held-out metric')}" if len(columns) > MAX_COLUMNS else ""
    metrics = ", ".join(shown) + more if shown else "no known metrics"
    step = summary["step_column"]
    return f"  read: {metrics}; step = {step}{', so steps are epochs' if step == 'epoch' else ''}"


def source_lines(summary: dict[str, Any]) -> list[str]:
    """Return lines about the columns that were recognized, the rows and fields that the import skipped, and hints."""
    lines = [recognized_text(summary)]
    lines += [f"  skipped: {_singular(count, kind)}" for kind, count in summary["skipped"].items()]
    return [line for text in [*lines, *summary["hints"]] for line in wrapped(text)]


def _singular(count: int, kind: str) -> str:
    """Return a count and a kind such as "rows without a step"."""
    noun, _, rest = kind.partition(" ")
    return f"{count} {noun.removesuffix('s') if count == 1 else noun} {rest}".rstrip()


def _summary_lines(summary: dict[str, Any]) -> list[str]:
    lines = wrapped(
        f"run {summary['run']}: {summary['observations']} observations of "
        f"{counted(len(summary['metrics']), 'metric')}, steps {summary['first_step']} to "
        f"{summary['last_step']}{resumed_text(summary['incarnations'])}; from {summary['source']} ({summary['format']})"
    )
    lines += source_lines(summary)
    if summary["untimed"]:
        lines.append(f"  {summary['untimed']} rows have no timestamp; the file's modification time is used")
    if summary["actuators"]:
        lines += wrapped(f"  knobs: {', '.join(summary['actuators'])}")
    else:
        lines += wrapped(
            "  no knobs, because there is no metric `learning_rate`: use --rename NAME=learning_rate if it has another "
            "name, or --knob optimizer.lr_scale"
        )
    lines.append("next steps:")
    return [*lines, f"  oven-controller review {summary['run']}", f"  oven-controller monitor {summary['run']}"]

"""`bench configurations`: does attaching in `observe` change any bit of a training?

Each configuration trains twice from the same seed in one process: alone, and attached in `observe` with the real mesh
and all installed agents in lockstep. The log history, all weights, the optimizer, the schedule, the trainer's state,
the random generators and the checkpoints are compared bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from oven_bench.configurations.comparison import WRONG, Result, play_named, quiet
from oven_bench.configurations.configuration import DEFAULT, load
from oven_bench.study import PATH, Report, Study, comma_separated, jobs_option, run_tasks
from oven_core.errors import ConfigError


def selected(table: Path, only: str) -> list[str]:
    """The names that begin with a prefix in `only`, or all names. Raises ConfigError if there are none."""
    quiet()  # the table imports torch
    prefixes = tuple(comma_separated(only))
    names = [
        configuration.name for configuration in load(table) if not prefixes or configuration.name.startswith(prefixes)
    ]
    if not names:
        raise ConfigError(f"no configuration begins with {' or '.join(prefixes)}; --list prints the names")
    return names


def failed(name: str, error: Exception) -> Result:
    """The result of a configuration whose worker process ended early."""
    return Result(name, "failed", f"the process ended: {error}")


def report(results: Sequence[Result]) -> Report:
    equal = [result for result in results if result.outcome == "equal"]
    wrong = [result for result in results if result.outcome in WRONG]
    figures: dict[str, object] = {"configurations": len(equal) + len(wrong), "equal": len(equal)}
    for outcome in (*WRONG, "differs on purpose", "cannot run here"):
        figures[outcome.replace(" ", "_")] = [result.name for result in results if result.outcome == outcome]
    figures |= {
        "equal_without_gradient": [result.name for result in equal if not result.gradient],
        "steps_observed": sum(result.ticks for result in results),
        "votes": sum(result.votes for result in results),
        "decisions_turned_down": sum(result.barred for result in results),
        "seconds": round(sum(result.seconds for result in results)),
    }
    failures = [result.line() for result in wrong] or ([] if equal else ["no configuration was compared"])
    return Report(figures, failures=failures)


@click.option("--only", default="", metavar="PREFIX,…", show_default="all", help="Prefixes of names, e.g. grpo/loss.")
@click.option("--list", "listed", is_flag=True, help="Print the names without training.")
@jobs_option()
@click.option(
    "--table", type=PATH, default=DEFAULT, show_default=False, help="The checkout's tests/foreign/trl_configurations."
)
def bench(only: str, listed: bool, jobs: int, table: Path) -> Report:
    names = selected(table, only)
    if listed:
        return Report({"names": names}, [{"name": name} for name in names])
    results: list[Result] = []
    for result in run_tasks(partial(play_named, table), names, jobs, describe=Result.line, failed=failed):
        results.append(result)
        print(result.line(), file=sys.stderr, flush=True)
    return report(results)


STUDY = Study(
    "configurations",
    bench,
    "--only grpo/loss,dpo --jobs 2",
    "Exit code 1: a configuration differs or fails, or none was compared.",
)

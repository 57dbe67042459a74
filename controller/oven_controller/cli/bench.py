"""The commands `bench` and `gym`. They need a source checkout, because the installed package has no benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

import click

from oven_controller.cli.options import argument
from oven_core.errors import ConfigError
from oven_core.plugins import import_object

PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that passes its arguments on. It has no --help of its own, so that `bench NAME --help`
shows the benchmark's."""


@click.command(context_settings=PASS_ON, add_help_option=False)
@argument("name", required=False, help="The benchmark to run. Without it, list them all.")
@click.pass_context
def bench(ctx: click.Context, name: str | None) -> int:
    """Run a benchmark. Arguments after its name are passed to it.

    Example: oven-controller bench starts --draws 20 --json
    """
    if name is not None and name not in ("-h", "--help"):
        return _run(name, ctx.args)
    _check_installed()
    print("Usage: oven-controller bench NAME [ARGS]…    oven-controller bench NAME --help\n")
    for benchmark, summary in import_object("bench", "list", "oven_bench.benches:SUMMARIES").items():
        print(f"  {benchmark:14} {summary}")
    print("\nExample: oven-controller bench starts --draws 20 --json")
    return 0


@click.command(context_settings=PASS_ON, add_help_option=False)
@click.pass_context
def gym(ctx: click.Context) -> int:
    """Measure whether the controller helps when a run goes wrong. `gym --help` lists the options.

    Example: oven-controller gym --quick --resume gym
    """
    return _run("gym", ctx.args)


def _run(name: str, args: Sequence[str]) -> int:
    _check_installed()
    return int(import_object("bench", name, "oven_bench.benches:run")(name, list(args)))


def _check_installed() -> None:
    """Raise ConfigError if the benchmarks are not installed."""
    if find_spec("oven_bench") is None:
        raise ConfigError(
            "the gym and the benchmarks are not part of the installed package; run `pip install -e .` in a source "
            "checkout to use them"
        )

"""`bench` and `gym`: measurements. They are in the source checkout, and not in the installed package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli.lazy_group import single_command
from oven_controller.cli.options import Json


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The measurement; without it, list all of them.")] = None,
) -> int:
    """Run a measurement. Arguments after its name are the measurement's own.

    Example: oven-controller bench starts --draws 20 --json
    """
    from oven_core import plugins

    _checked()
    if name is None or name in ("-h", "--help"):
        print("Usage: oven-controller bench NAME [ARGS]…    oven-controller bench NAME --help\n")
        for known in plugins.points("benches"):
            print(f"  {known:10} {plugins.load('benches', 'bench', known).summary}")
        return 0
    return int(plugins.load("benches", "bench", name).run(list(context.args)))


# Its own help option would take `bench NAME --help` away from the measurement.
bench_command = single_command(bench, allow_extra_args=True, ignore_unknown_options=True, help_option_names=[])


def gym(
    quick: Annotated[bool, typer.Option("--quick", help="One seed, fewer arms, every third family.")] = False,
    arms: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated; `rule.*` takes all of those.")] = "",
    families: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated; `grpo.*` takes all of those.")] = "",
    seeds: Annotated[int | None, typer.Option(help="Seeds per family.", show_default="3; 1 with --quick")] = None,
    first_seed: Annotated[int, typer.Option(help="The others follow it.")] = 1,
    held_out: Annotated[
        bool,
        typer.Option("--held-out", help="Also run the held-out families, and report on those."),
    ] = False,
    tasks: Annotated[
        str,
        typer.Option(metavar="NAMES", help="What is trained; `*` takes all.", show_default="pretraining,grpo"),
    ] = "",
    horizon: Annotated[
        int, typer.Option(help="Gradient steps from a fault's onset to the end: a trial weighs less in a longer run.")
    ] = 100,
    jobs: Annotated[int, typer.Option(help="Episodes at a time.")] = 2,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the episodes there, and run only those it lacks.")
    ] = None,
    subject: Annotated[str, typer.Option(metavar="ARM", help="The arm that the verdict is on.")] = "mesh+kg",
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture there, as SVG.")] = None,
) -> int:
    """Does the controller help? Faults in small training runs, repaired by it, by fixed rules, by chance or not at all.

    Exit code 1 when it harms. Example: oven-controller gym --quick --resume gym --plot gym.svg
    """
    from oven_core.plugins import imported

    _checked()
    play: Any = imported("command", "gym", "oven_bench.gym.command:main")
    code: int = play(
        quick=quick,
        arms=_names(arms),
        families=_names(families),
        seeds=seeds,
        first_seed=first_seed,
        held_out=held_out,
        tasks=_names(tasks),
        horizon=horizon,
        jobs=jobs,
        resume=resume,
        subject=subject,
        as_json=as_json,
        plot=plot,
    )
    return code


def _checked() -> None:
    """Raises ConfigError if the benches are not installed."""
    from oven_core.errors import ConfigError

    if find_spec("oven_bench") is None:
        raise ConfigError(
            "the gym and the benches are not in the installed package: run them from a source checkout, after "
            "`pip install -e .` there"
        )


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]

"""`gym`: measures whether the controller helps.

The bench's side is an entry point of oven.commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oven_controller.cli.options import Json


def register(app: typer.Typer) -> None:
    app.command()(gym)


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
    horizon: Annotated[int, typer.Option(help="Gradient steps from a fault's onset to the end.")] = 100,
    jobs: Annotated[int, typer.Option(help="Episodes at a time.")] = 2,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the episodes there, and run only those it lacks.")
    ] = None,
    subject: Annotated[str, typer.Option(metavar="ARM", help="The arm that the verdict is on.")] = "mesh+kg",
    as_json: Json = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the picture there, as SVG.")] = None,
) -> None:
    """Does the controller help? Faults in small training runs, repaired by it, by fixed rules, by chance or not at all.

    Exit code 1 when it harms. Example: oven-controller gym --quick --resume gym --plot gym.svg
    """
    from oven_core import plugins

    run = plugins.load("commands", "command", "gym")
    code = run(
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
    raise typer.Exit(int(code))


def _names(said: str) -> list[str]:
    return [name for name in (each.strip() for each in said.split(",")) if name]

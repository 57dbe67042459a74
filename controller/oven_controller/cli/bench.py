"""`bench`: measurements, each plugged in by an entry point of oven.benches."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    # Its own help option would take `bench NAME --help` away from the measurement.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(bench)


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which measurement; without one: what there is.")] = None,
) -> None:
    """Run a measurement; what follows its name is passed on to it.

    Example: oven-controller bench starts --draws 20 --json
    """
    from oven_core import plugins

    if name is None or name in ("-h", "--help"):
        print("Usage: oven-controller bench NAME [ARGS]…    oven-controller bench NAME --help\n")
        for known in plugins.points("benches"):
            print(f"  {known:10} {plugins.load('benches', 'bench', known).summary}")
        return
    raise typer.Exit(int(plugins.load("benches", "bench", name).run(list(context.args))))

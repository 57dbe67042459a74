"""`bench`: measurements, each plugged in by an entry point of oven.benches."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def bench(context: typer.Context, name: Annotated[str, typer.Argument(help="Which measurement.")]) -> None:
    """Run a measurement; what follows its name is passed on to it.

    Example: oven-controller bench starts --draws 20 --json
    """
    from oven_controller.stack import plugins

    raise typer.Exit(int(plugins.load("benches", "bench", name).run(list(context.args))))

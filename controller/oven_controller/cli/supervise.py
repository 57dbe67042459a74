"""`supervise`: a strong model writes programs over a long context; each command is an entry point of oven.supervise."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    # Its own help option would take `supervise NAME --help` away from the command.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(supervise)


def supervise(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which command; without one: what there is.")] = None,
) -> None:
    """Have a model write programs over a long text that a cheaper one reads; measure that, and keep what it teaches.

    Example: oven-controller supervise run --task stdlib --base-url http://127.0.0.1:8000/v1 -n 20
    """
    from oven_controller import plugins

    if name is None or name in ("-h", "--help"):
        print("Usage: oven-controller supervise NAME [ARGS]…    oven-controller supervise NAME --help\n")
        for known in plugins.points("supervise"):
            print(f"  {known:10} {plugins.load('supervise', 'command of supervise', known).summary}")
        print("\nExample: oven-controller supervise data stdlib.json -n 200")
        return
    raise typer.Exit(int(plugins.load("supervise", "command of supervise", name).run(list(context.args))))

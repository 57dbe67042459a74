"""`kg`: questions to the prior service's graph, without a stack; each is an entry point of oven.kg."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    # Its own help option would take `kg NAME --help` away from the question.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(kg)


def kg(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which question; without one: what there is.")] = None,
) -> None:
    """Ask the graph of causes and remedies: diagnose, import, info, lint, learn, curriculum, token-prior, query.

    Example: oven-controller kg diagnose loss_spike grad_norm_spike
    """
    from oven_controller import plugins

    if name is None or name in ("-h", "--help"):
        print("Usage: oven-controller kg NAME [ARGS]…    oven-controller kg NAME --help\n")
        for known in plugins.points("kg"):
            print(f"  {known:12} {plugins.load('kg', 'question', known).summary}")
        print("\nExample: oven-controller kg diagnose loss_spike grad_norm_spike")
        return
    raise typer.Exit(int(plugins.load("kg", "question", name).run(list(context.args))))

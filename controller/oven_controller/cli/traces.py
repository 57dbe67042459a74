"""`traces`: an agent's traces and what teachers would have done; its commands are entry points of oven.trace_commands."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    # Its own help option would take `traces NAME --help` away from the command.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings)(traces)


def traces(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Which command; without one: what there is.")] = None,
) -> None:
    """Record an agent's traces, ask teachers at each of its states, and make preference pairs of their answers.

    Example: oven-controller traces replay traces.jsonl --teachers teachers.yaml --out replies.jsonl
    """
    from oven_controller import plugins

    if name is None or name in ("-h", "--help"):
        print("Usage: oven-controller traces NAME [ARGS]…    oven-controller traces NAME --help\n")
        for known in plugins.points("trace_commands"):
            print(f"  {known:10} {plugins.load('trace_commands', 'command of traces', known).summary}")
        print("\nExample: oven-controller traces replay traces.jsonl --teachers teachers.yaml --out replies.jsonl")
        return
    raise typer.Exit(int(plugins.load("trace_commands", "command of traces", name).run(list(context.args))))

"""`kg`, `supervise` and `traces`: groups whose commands are entry points, since other packages have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import typer


@dataclass(frozen=True)
class Group:
    """A group of commands, each a `PluggedCommand`."""

    name: str
    points: str
    """The entry points, without `oven.`."""
    does: str
    """What its help says of it."""
    example: str


GROUPS: Final = (
    Group(
        "kg",
        "kg",
        "Ask the graph of causes and remedies: diagnose, import, info, lint, learn, curriculum, token-prior, query.",
        "diagnose loss_spike grad_norm_spike",
    ),
    Group(
        "supervise",
        "supervise",
        "Have a model write programs over a long text that a cheaper one reads; measure it, and keep what it teaches.",
        "run --task stdlib --base-url http://127.0.0.1:8000/v1 -n 20",
    ),
    Group(
        "traces",
        "trace_commands",
        "Record an agent's traces, ask teachers at each of its states, and make preference pairs of their answers.",
        "replay traces.jsonl --teachers teachers.yaml --out replies.jsonl",
    ),
)


def register(app: typer.Typer) -> None:
    for group in GROUPS:
        help_text = f"{group.does}\n\nExample: oven-controller {group.name} {group.example}"
        # Its own help option would take `kg NAME --help` away from the command.
        settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
        app.command(group.name, help=help_text, context_settings=settings)(_runs(group))


def _runs(group: Group) -> Callable[[typer.Context, str | None], None]:
    def run(
        context: typer.Context,
        name: Annotated[str | None, typer.Argument(help="Which command; without one: what there is.")] = None,
    ) -> None:
        from oven_core import plugins

        if name is None or name in ("-h", "--help"):
            program = f"oven-controller {group.name}"
            print(f"Usage: {program} NAME [ARGS]…    {program} NAME --help\n")
            for known in plugins.points(group.points):
                print(f"  {known:12} {plugins.load(group.points, f'command of {group.name}', known).summary}")
            print(f"\nExample: {program} {group.example}")
            return
        found = plugins.load(group.points, f"command of {group.name}", name)
        raise typer.Exit(int(found.run(list(context.args))))

    return run

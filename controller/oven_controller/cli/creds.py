"""`creds`: keys for those who take part from elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys for agents that are started by hand or elsewhere.")
    group.callback()(_group)
    group.command("add")(add)
    app.add_typer(group, name="creds")


def _group() -> None:
    """Keys for agents that are started by hand or elsewhere."""


def add(
    name: Annotated[str, typer.Argument(help="The agent's name; only under it may it vote.")],
    run: Annotated[str | None, typer.Option(help="The run; the running one, else the newest, if left out.")] = None,
) -> None:
    """Make an agent's key for a run, and print the environment that its process needs.

    Example: oven-controller creds add scout --run grpo-1121-0231
    """
    from oven_controller.home import Home
    from oven_controller.stack.admit import admit
    from oven_controller.stack.plan import Plan, export_lines

    folder = Home().find(run)
    admit(folder, name)
    for line in export_lines(Plan(folder, folder.info().url).environment("agent", name)):
        print(line)

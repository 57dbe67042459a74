"""`backtest`: an agent over a recorded run; the agents' side is plugged in by the entry point of oven.commands."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli.replay import UntilTick
from oven_controller.cli.runs import Json, RunName


def register(app: typer.Typer) -> None:
    app.command()(backtest)


def backtest(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an installed agent, or a Python file.")],
    run: RunName = None,
    until: UntilTick = None,
    as_json: Json = False,
) -> None:
    """What an agent would have voted in a recorded run, and what would have been decided; open loop.

    Example: oven-controller backtest my_agent.py grpo-1121-0231
    """
    from oven_controller.home import Home
    from oven_controller.stack import plugins

    folder = Home().find(run)
    raise typer.Exit(int(plugins.load("commands", "command", "backtest")(agent, folder, until=until, as_json=as_json)))

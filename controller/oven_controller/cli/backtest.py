"""`backtest`: one agent over a recorded run."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunName, SameRun, one_run
from oven_controller.cli.replay import UntilTick


def backtest(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT",
            help="The name of an installed agent, or a Python file.",
            autocompletion=completion.agents_or_files,
        ),
    ],
    run: RunName = None,
    run_: SameRun = None,
    until: UntilTick = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="rules.KEY=VALUE", help="A rule to decide by instead of the run's; repeat it."),
    ] = None,
    as_json: Json = False,
) -> int:
    """What an agent would have voted in a recorded run, and what would have been decided; open loop.

    Example: oven-controller backtest my_agent.py grpo-1121-0231 --set rules.autonomy=auto
    """
    from oven_agents.review.backtest import main
    from oven_controller.importing.import_run import hints
    from oven_runs.home.run_folder import Home
    from oven_runs.settings.resolution import rules_set

    rules, folder = rules_set(sets or ()), Home().find(one_run(run, run_))
    return main(agent, folder, until=until, as_json=as_json, rules=rules, hints=hints)

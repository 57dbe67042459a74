"""The `backtest` command: run one agent on a recorded run."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, Rules, RunAlias, RunName, UntilTick, one_run
from oven_runs.home.run_folder import Home
from oven_runs.settings.resolution import rules_from_sets


def backtest(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT",
            help="Name of an installed agent, or a Python file.",
            autocompletion=completion.agents_or_files,
        ),
    ],
    run: RunName = None,
    run_: RunAlias = None,
    until: UntilTick = None,
    overrides: Rules = None,
    as_json: Json = False,
) -> int:
    """Show how an agent would have voted in a recorded run, and which decisions would have followed.

    Example: oven-controller backtest my_agent.py grpo-1121-0231 --set rules.autonomy=auto
    """
    from oven_agents.review.backtest import main
    from oven_controller.importing.import_run import suggest_renames

    rules = rules_from_sets(overrides or ())
    folder = Home().find(one_run(run, run_))
    return main(agent, folder, until=until, as_json=as_json, rules=rules, hints=suggest_renames)

"""The `backtest` command: run one agent on a recorded run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from oven_controller.cli import completion
from oven_controller.cli.options import DEFAULT_RUN, argument, json_option, rules_option, run_argument, until_option
from oven_runs.home.run_folder import Home
from oven_runs.settings.resolution import rules_from_sets


@click.command()
@argument("agent", shell_complete=completion.agents_or_files, help="Name of an installed agent, or a Python file.")
@run_argument(DEFAULT_RUN)
@until_option
@rules_option
@json_option
def backtest(agent: str, run: str | None, until: int | None, overrides: Sequence[str], as_json: bool) -> int:
    """Show how an agent would have voted in a recorded run, and which decisions would have followed.

    Example: oven-controller backtest my_agent.py grpo-1121-0231 --set rules.autonomy=auto
    """
    from oven_agents.review.backtest import main
    from oven_controller.importing.import_run import suggest_renames

    rules = rules_from_sets(overrides)
    folder = Home().find(run)
    return main(agent, folder, until=until, as_json=as_json, rules=rules, hints=suggest_renames)

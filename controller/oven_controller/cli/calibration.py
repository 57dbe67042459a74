"""The `calibration` command: score the stated confidences of agents over one or more runs."""

from __future__ import annotations

from pathlib import Path

import click

from oven_controller.cli import completion
from oven_controller.cli.options import json_option, print_result, print_table, runs_argument
from oven_controller.importing.open_log import open_log
from oven_core.protocol.messages import Outcome
from oven_core.terminal_text import say, wrapped
from oven_runs.home.run_folder import Home
from oven_runs.log.vote_calibration import Calibration, calibrate, calibrate_by_agent, collect_claims

NOTE = (
    "The outcome is the probability, from 0 to 1, that a change was better than no change. The best constant is known "
    "only in hindsight. The votes of one run are not independent."
)


@click.command()
@runs_argument("Run names, run folders, or log.jsonl files.", shell_complete=completion.runs_or_logs)
@json_option
def calibration(runs: list[str], as_json: bool) -> None:
    """Score the confidences that agents stated: Brier score, Brier score of the best constant, and a reliability table.

    Example: oven-controller calibration grpo-1121-0231 grpo-1121-0307
    """
    outcomes = [outcome for run in runs for outcome in _read_outcomes(run)]
    scored_claims = collect_claims(outcomes)
    counts = {"outcomes": len(outcomes), "unscored": sum(not outcome.scored for outcome in outcomes)}
    agents, overall = calibrate_by_agent(scored_claims), calibrate(scored_claims)
    line = f"{counts['outcomes']} outcomes, {counts['unscored']} of them unscored"
    print_result(as_json, {"runs": runs, **counts, "agents": agents, "overall": overall}, [line])
    if scored_claims and not as_json:
        _print_tables(agents, overall)


def _read_outcomes(source: str) -> list[Outcome]:
    """Return the outcomes in a run's log. Raises UnknownNameError and ConfigError."""
    with open_log(source if Path(source).exists() else str(Home().find(source).path)) as log:
        return [event.body for event in log.events() if isinstance(event.body, Outcome)]


def _print_tables(agents: dict[str, Calibration], overall: Calibration) -> None:
    rows = []
    for name, score in {**agents, "all": overall}.items():
        figures = (score.brier, score.constant_brier, score.constant)
        rows.append((name, str(score.count), *("" if value is None else f"{value:.3f}" for value in figures)))
    print_table(("agent", "votes", "Brier", "Brier of best constant", "best constant"), rows)
    reliability = [(f"{b.low:.1f} to {b.high:.1f}", str(b.count), f"{b.p:.3f}", f"{b.y:.3f}") for b in overall.bins]
    print_table(("stated confidence", "votes", "mean stated", "mean outcome"), reliability)
    say(*wrapped(NOTE))

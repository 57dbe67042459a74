"""`calibration`: scores the confidences that agents stated, over any number of runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from oven_controller.cli import completion
from oven_controller.cli.options import Json, SameRuns, several_runs
from oven_core.errors import ConfigError, reason
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Outcome
from oven_core.security.signing import Keyring
from oven_runs.access import log_reader
from oven_runs.home.run_folder import Home
from oven_runs.log.vote_calibration import Calibration, by_agent, claims
from oven_runs.log.vote_calibration import calibration as calibrated

SUFFIX = ".jsonl"
NOTE = (
    "y: the probability, 0 to 1, that a change was better than no change; the best constant is known only afterwards; "
    "votes of one run are not independent"
)


def calibration(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs, or .jsonl files: exported logs or gym episodes.",
            autocompletion=completion.runs_or_logs,
        ),
    ] = None,
    runs_: SameRuns = None,
    arm: Annotated[str, typer.Option(metavar="ARM", help="The arm of gym episodes.")] = "mesh+kg",
    as_json: Json = False,
) -> None:
    """Score the confidences that agents stated: the Brier score, that of the best constant, and a reliability table.

    Example: oven-controller calibration grpo-1121-0231 grpo-1121-0307
    """
    runs = several_runs(runs, runs_)
    outcomes = [outcome for run in runs for outcome in _outcomes(run, arm)]
    scored = claims(outcomes)
    counts = {
        "outcomes": len(outcomes),
        "unscored": sum(not outcome.scored for outcome in outcomes),
    }
    agents, overall = by_agent(scored), calibrated(scored)
    if as_json:
        scores = {name: asdict(score) for name, score in agents.items()}
        print(json.dumps({"runs": runs, **counts, "agents": scores, "overall": asdict(overall)}))
        return
    print(f"{counts['outcomes']} outcomes; {counts['unscored']} say nothing")
    if scored:
        _print_tables(agents | {"all": overall}, overall)


def _outcomes(run: str, arm: str) -> list[Outcome]:
    """The outcomes of a run or of a file. Raises UnknownNameError, ConfigError."""
    if run.endswith(SUFFIX):
        return list(_outcomes_in_file(Path(run), arm))

    async def logged() -> list[Outcome]:
        events = log_reader.events(Home().find(run))
        return [event.body async for event in events if isinstance(event.body, Outcome)]

    return asyncio.run(logged())


def _outcomes_in_file(path: Path, arm: str) -> Iterator[Outcome]:
    keyring = Keyring(None)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file; name a log, or gym episodes")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would also split at U+2028
        if not line:
            continue
        try:
            entry = json.loads(line)
            if "outcomes" in entry:
                outcomes = entry["outcomes"] if entry["arm"] == arm else ()
                yield from map(Outcome.model_validate, outcomes)
            else:
                body = keyring.verify(Event.from_line(line)).body
                if isinstance(body, Outcome):
                    yield body
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            problem = f"{path}, line {number}, is neither an event of an exported log nor a gym episode"
            raise ConfigError(f"{problem} ({reason(error)}); name a run instead") from error


def _print_tables(rows: dict[str, Calibration], overall: Calibration) -> None:
    console = Console()
    table = Table("agent", "votes", "Brier", "best constant", "of", box=None, pad_edge=False)
    for name, score in rows.items():
        figures = (score.brier, score.constant_brier, score.constant)
        table.add_row(name, str(score.count), *("" if value is None else f"{value:.3f}" for value in figures))
    console.print(table)
    reliability = Table("stated", "votes", "mean p", "mean y", box=None, pad_edge=False)
    for interval in overall.bins:
        range_ = f"{interval.low:.1f} to {interval.high:.1f}"
        reliability.add_row(range_, str(interval.count), f"{interval.p:.3f}", f"{interval.y:.3f}")
    console.print(reliability)
    console.print(NOTE, highlight=False)

"""The commands `oracle evaluate` and `oracle ask`: evaluate an oracle, or ask it about a text's activations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunAlias, one_run
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import Home

ORACLE_RUN: Any = {
    "metavar": "RUN",
    "help": "A run's name, or the folder of a run, a checkpoint or an adapter with an oracle.",
    "show_default": "the newest run that has an oracle",
    "autocompletion": completion.runs,
}
"""Settings that the argument RUN and the option --run share."""
OracleArgument = Annotated[str | None, typer.Argument(**ORACLE_RUN)]
OracleOption = Annotated[str | None, typer.Option("--run", "-r", **ORACLE_RUN)]
Percents = Annotated[
    str | None,
    typer.Option(
        "--layer-percents",
        metavar="P,P,…",
        help="Depths in percent of the layers.",
        show_default="the depths used in training",
    ),
]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")]


def evaluate(
    run: OracleArgument = None,
    benchmarks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with a subfolder per benchmark, with its published files. Benchmarks without a subfolder are "
            "evaluated on templates.",
        ),
    ] = None,
    items: Annotated[int, typer.Option(min=20, help="Items per benchmark.")] = 250,
    layer_percents: Percents = None,
    temperature: Temperature = 0.0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write evaluation.json and reliability.png to this folder.")
    ] = None,
    as_json: Json = False,
    run_: RunAlias = None,
) -> int:
    """Evaluate an oracle on nine benchmarks: accuracy, ECE, MCE and Brier score, with intervals and a null ECE.

    Each question is asked at several depths, with the text's own activations and with another text's (shuffled).

    Example: oven-controller oracle evaluate oracle-1125-0900 --benchmarks ~/benchmarks --out evaluation
    """
    from oven_recipes.oracle import commands

    settings: Any = {"depths": _parse_percents(layer_percents), "temperature": temperature, "as_json": as_json}
    folder = _find_oracle(one_run(run, run_))
    return commands.evaluate(folder, benchmarks=benchmarks, items=items, out=out, **settings)


def ask(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text whose activations the oracle sees; - reads standard input.")
    ],
    question: Annotated[
        str | None,
        typer.Argument(metavar="QUESTION", help="Question about the text.", show_default="the benchmarks' questions"),
    ] = None,
    run: OracleOption = None,
    layer_percents: Percents = None,
    temperature: Temperature = 0.0,
    as_json: Json = False,
) -> int:
    """Ask an oracle about a text, and print its answer and stated confidence at each depth.

    The oracle sees the text's activations and never the text.

    Example: oven-controller oracle ask "the film was very boring" "is the feeling of this text positive?"
    """
    from oven_recipes.oracle import commands

    folder, depths = _find_oracle(run), _parse_percents(layer_percents)
    content = sys.stdin.read() if text == "-" else text
    return commands.ask(folder, content, question, depths=depths, temperature=temperature, as_json=as_json)


def _find_oracle(run: str | None) -> Path:
    """Return the folder of the oracle that `run` names. Raises ConfigError and UnknownNameError."""
    if run is not None:
        path = Path(run).expanduser()
        return path.absolute() if path.is_dir() or "/" in run else Home().find(run).path
    home = Home()
    for folder in home.runs():
        if (folder.path / "oracle" / "oracle.json").is_file():
            return folder.path
    raise ConfigError(
        f"no run in {home.path} has an oracle; train one with `oven-controller up --recipe oracle`, or name a folder"
    )


def _parse_percents(text: str | None) -> tuple[float, ...] | None:
    """Parse --layer-percents. Raises ConfigError unless all numbers are at least 0 and below 100."""
    if text is None:
        return None
    try:
        percents = tuple(float(part) for part in text.split(","))
    except ValueError:
        percents = ()
    if not percents or not all(0 <= percent < 100 for percent in percents):
        raise ConfigError(f"--layer-percents {text} is invalid; use numbers from 0 to below 100, e.g. 25,50,75")
    return tuple(dict.fromkeys(percents))

"""The commands `oracle evaluate` and `oracle ask`: evaluate an oracle, or ask it about a text's activations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from oven_controller.cli.options import PATH, argument, json_option, run_argument, run_option
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import Home

ORACLE_RUN = "A run's name, or the folder of a run, a checkpoint or an adapter with an oracle."
DEFAULT_ORACLE = "the newest run that has an oracle"
percents_option = click.option(
    "--layer-percents",
    metavar="P,P,…",
    show_default="the depths used in training",
    help="Depths in percent of the layers.",
)
temperature_option = click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, help="Sampling temperature; 0 is greedy."
)


@click.command()
@run_argument(DEFAULT_ORACLE, ORACLE_RUN)
@click.option(
    "--benchmarks",
    type=PATH,
    metavar="DIR",
    help="Folder with a subfolder per benchmark, with its published files. Benchmarks without a subfolder are "
    "evaluated on templates.",
)
@click.option("--items", type=click.IntRange(min=20), default=250, help="Items per benchmark.")
@percents_option
@temperature_option
@click.option("--out", type=PATH, metavar="DIR", help="Also write evaluation.json and reliability.png to this folder.")
@json_option
def evaluate(
    run: str | None,
    benchmarks: Path | None,
    items: int,
    layer_percents: str | None,
    temperature: float,
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluate an oracle on nine benchmarks: accuracy, ECE, MCE and Brier score, with intervals and a null ECE.

    Each question is asked at several depths, with the text's own activations and with another text's (shuffled).

    Example: oven-controller oracle evaluate oracle-1125-0900 --benchmarks ~/benchmarks --out evaluation
    """
    from oven_recipes.oracle import commands

    settings: Any = {"depths": _parse_percents(layer_percents), "temperature": temperature, "as_json": as_json}
    folder = _find_oracle(run)
    return commands.evaluate(folder, benchmarks=benchmarks, items=items, out=out, **settings)


@click.command()
@argument("text", help="The text whose activations the oracle sees; - reads standard input.")
@argument("question", required=False, help="Question about the text.  [default: the benchmarks' questions]")
@run_option(ORACLE_RUN, show_default=DEFAULT_ORACLE)
@percents_option
@temperature_option
@json_option
def ask(
    text: str, question: str | None, run: str | None, layer_percents: str | None, temperature: float, as_json: bool
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

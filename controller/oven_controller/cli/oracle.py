"""`oracle evaluate | ask`: what an oracle of the recipe `oracle` says about texts whose activations it is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json

NEWEST = "the newest run that has an oracle"
Place = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's name, or a folder with an oracle: of a run, a checkpoint or an adapter.",
        show_default=NEWEST,
        autocompletion=completion.runs,
    ),
]
PlaceOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        "-r",
        metavar="RUN",
        help="A run's name, or a folder with an oracle: of a run, a checkpoint or an adapter.",
        show_default=NEWEST,
        autocompletion=completion.runs,
    ),
]
Percents = Annotated[
    str | None,
    typer.Option(
        "--layer-percents", metavar="P,P,…", help="Depths, in percent.", show_default="those it was trained on"
    ),
]
Temperature = Annotated[float, typer.Option(min=0.0, help="Of sampling; 0 is greedy.")]


def evaluate(
    run: Place = None,
    benchmarks: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with a folder per benchmark that holds its published files; a benchmark that is not in it is "
            "evaluated on templates, and so are all without this option.",
        ),
    ] = None,
    items: Annotated[int, typer.Option(min=20, help="Items of each benchmark.")] = 250,
    layer_percents: Percents = None,
    temperature: Temperature = 0.0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write evaluation.json and reliability.png there.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Measure an oracle on nine benchmarks: accuracy, ECE, MCE and Brier, with intervals and ECE's null.

    Each item is asked about at several depths, with the text's own activations and with another text's (shuffled).

    Example: oven-controller oracle evaluate oracle-1125-0900 --benchmarks ~/benchmarks --out evaluation
    """
    from oven_recipes.oracle.evaluate_command import main

    place, percents = _place(run), _percents(layer_percents)
    return main(
        place,
        benchmarks=benchmarks,
        items=items,
        percents=percents,
        temperature=temperature,
        out=out,
        as_json=as_json,
    )


def ask(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The text whose activations are shown; - reads standard input.")
    ],
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="About it.", show_default="the benchmarks' questions")
    ] = None,
    run: PlaceOption = None,
    layer_percents: Percents = None,
    temperature: Temperature = 0.0,
    as_json: Json = False,
) -> int:
    """Ask an oracle about a text: its answer and stated confidence at each depth.

    The oracle is shown the text's activations and never the text.

    Example: oven-controller oracle ask "the film was very boring" "is the feeling of this text positive?"
    """
    from oven_recipes.oracle.ask_command import main

    place, percents = _place(run), _percents(layer_percents)
    said = sys.stdin.read() if text == "-" else text
    return main(place, said, question, percents=percents, temperature=temperature, as_json=as_json)


def _place(run: str | None) -> Path:
    """The folder that is named, or that of the run that is. Raises ConfigError and UnknownNameError."""
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    if run is not None:
        path = Path(run).expanduser()
        return path.absolute() if path.is_dir() or "/" in run else Home().find(run).path
    home = Home()
    found = next((folder for folder in home.runs() if (folder.path / "oracle" / "oracle.json").is_file()), None)
    if found is None:
        raise ConfigError(
            f"no run in {home.path} has an oracle; `oven-controller up --recipe oracle` trains one, or name a folder"
        )
    return found.path


def _percents(said: str | None) -> tuple[float, ...] | None:
    """Raises ConfigError for anything but numbers from 0 to below 100."""
    from oven_core.errors import ConfigError

    if said is None:
        return None
    try:
        found = tuple(float(one) for one in said.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= one < 100 for one in found):
        raise ConfigError(f"--layer-percents {said}: give numbers from 0 to below 100 with commas, e.g. 25,50,75")
    return tuple(dict.fromkeys(found))

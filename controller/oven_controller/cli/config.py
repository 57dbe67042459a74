"""`config show`: the settings that a run would get, and the origin of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oven_controller.cli import completion
from oven_controller.cli.options import Json
from oven_core.errors import ConfigError
from oven_core.terminal_text import clean
from oven_runs.home.run_folder import Home
from oven_runs.settings.layers import Origin
from oven_runs.settings.model import ATTACHED
from oven_runs.settings.resolution import resolve


def show(
    config: Annotated[Path | None, typer.Option(help="A YAML file with settings.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting; repeatable.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            "-r",
            metavar="RUN",
            help="Show the settings with which this run would resume.",
            autocompletion=completion.runs,
        ),
    ] = None,
    attached: Annotated[
        bool, typer.Option("--attached", help="Show the settings of a run around your own script (`run --`).")
    ] = False,
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Show the source of each value: default, file and line, variable, or --set."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print every setting with the value that `up` would use here (with --attached: `run --`). Nothing is started.

    Example: oven-controller config show --origin --config oven.yaml --set rules.window_ticks=5
    """
    earlier = None
    if run is not None:
        folder = Home().find(run)
        earlier = folder.earlier_settings()
        if not earlier:
            raise ConfigError(f"run {folder.run!r} has no settings in {folder.config}: omit --run, or name another run")
        attached = attached or earlier.get("recipe") == ATTACHED
    resolved = resolve(config=config, sets=sets or (), environ=os.environ, attached=attached, earlier=earlier)
    origins = [replace(setting, value=_without_password(setting.value)) for setting in resolved.origins()]
    if as_json:
        print(json.dumps([_json_fields(setting) for setting in origins], ensure_ascii=False))
    else:
        _print(origins, origin)


def _without_password(value: object) -> object:
    """The value without the password of an address, because people paste the output into issues."""
    return re.sub(r"(//[^/@:\s]*):[^/@\s]*@", r"\1:…@", value) if isinstance(value, str) else value


def _json_fields(origin: Origin) -> dict[str, object]:
    fields = asdict(origin)
    return {"setting": fields["setting"], "value": fields["value"], "origin": fields["kind"]} | {
        key: fields[key] for key in ("source", "line") if fields[key] is not None and origin.kind != "default"
    }


def _print(origins: Sequence[Origin], with_source: bool) -> None:
    columns = ("setting", "value", "from") if with_source else ("setting", "value")
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == "setting")
    for origin in origins:
        cells = (origin.setting, json.dumps(origin.value, ensure_ascii=False), str(origin))
        table.add_row(*(Text(clean(cell)) for cell in cells[: len(columns)]))
    Console().print(table)

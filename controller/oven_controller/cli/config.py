"""`config show`: the settings that a run would get, and the origin of each."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oven_runs.settings.layers import Origin


def show(
    config: Annotated[Path | None, typer.Option(help="A YAML file with settings.")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting; repeatable.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            "-r",
            metavar="RUN",
            help="The settings with which this run would be resumed.",
            autocompletion=completion.runs,
        ),
    ] = None,
    attached: Annotated[
        bool, typer.Option("--attached", help="The settings of a run around your own script (`run --`).")
    ] = False,
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Show where each value comes from: default, file and line, variable, or --set."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show every setting and its value, as `up` (`run --`, with --attached) would take them here. Nothing is started.

    Example: oven-controller config show --origin --config oven.yaml --set rules.window_ticks=5
    """
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home
    from oven_runs.settings.model import ATTACHED
    from oven_runs.settings.resolution import resolve

    earlier = None
    if run is not None:
        folder = Home().find(run)
        earlier = folder.earlier_settings()
        if not earlier:
            raise ConfigError(
                f"run {folder.run!r} has no settings in {folder.config}: leave --run out, or name another"
            )
        attached = attached or earlier.get("recipe") == ATTACHED
    resolved = resolve(config=config, sets=sets or (), environ=os.environ, attached=attached, earlier=earlier)
    found = [replace(one, value=_hidden(one.value)) for one in resolved.origins()]
    if as_json:
        print(json.dumps([_plain(one) for one in found], ensure_ascii=False))
    else:
        _print(found, origin)


def _hidden(value: object) -> object:
    """Without the password of an address: what is shown is pasted into issues."""
    return re.sub(r"(//[^/@:\s]*):[^/@\s]*@", r"\1:…@", value) if isinstance(value, str) else value


def _plain(origin: Origin) -> dict[str, object]:
    fields = asdict(origin)
    return {"setting": fields["setting"], "value": fields["value"], "origin": fields["kind"]} | {
        key: fields[key] for key in ("source", "line") if fields[key] is not None and origin.kind != "default"
    }


def _print(found: Sequence[Origin], origin: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from oven_core.terminal_text import clean

    columns = ("setting", "value", "from") if origin else ("setting", "value")
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == "setting")
    for one in found:
        cells = (one.setting, json.dumps(one.value, ensure_ascii=False), str(one))
        table.add_row(*(Text(clean(cell)) for cell in cells[: len(columns)]))
    Console().print(table)

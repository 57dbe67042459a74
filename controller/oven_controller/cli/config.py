"""The `config show` command: print the settings of a run and where each one comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from oven_controller.cli.options import config_option, json_option, print_table, run_option, settings_option
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import Home
from oven_runs.settings.completions import ATTACHED
from oven_runs.settings.layers import Origin
from oven_runs.settings.resolution import resolve


@click.command()
@config_option
@settings_option
@run_option("Show the settings with which this run would resume.")
@click.option("--attached", is_flag=True, help="Show the settings of a run around your own script (`run --`).")
@click.option(
    "--origin", is_flag=True, help="Show the source of each value: default, file and line, variable, or --set."
)
@json_option
def show(
    config: Path | None, overrides: Sequence[str], run: str | None, attached: bool, origin: bool, as_json: bool
) -> None:
    """Print every setting with the value that `up` would use, or with --attached, that `run --` would use.

    Example: oven-controller config show --origin --config oven.yaml --set rules.window_ticks=5
    """
    earlier_settings = None
    if run is not None:
        folder = Home().find(run)
        earlier_settings = folder.earlier_settings()
        if not earlier_settings:
            raise ConfigError(f"run {folder.run!r} has no settings in {folder.config}: omit --run, or name another run")
        attached = attached or earlier_settings.get("recipe") == ATTACHED
    resolved = resolve(
        config=config, sets=overrides, environ=os.environ, attached=attached, earlier_settings=earlier_settings
    )
    origins = [replace(setting, value=_without_password(setting.value)) for setting in resolved.origins()]
    if as_json:
        print(json.dumps([_json_fields(setting) for setting in origins], ensure_ascii=False))
        return
    columns = ("setting", "value", "from") if origin else ("setting", "value")
    rows = [(row.setting, json.dumps(row.value, ensure_ascii=False), str(row)) for row in origins]
    print_table(columns, (cells[: len(columns)] for cells in rows))


def _without_password(value: object) -> object:
    """Hide the password in an address, because people paste the output into issues."""
    return re.sub(r"(//[^/@:\s]*):[^/@\s]*@", r"\1:…@", value) if isinstance(value, str) else value


def _json_fields(origin: Origin) -> dict[str, object]:
    fields = {"setting": origin.setting, "value": origin.value, "origin": origin.kind}
    if origin.kind == "default":
        return fields
    position = {"source": origin.source, "line": origin.line}
    return fields | {name: value for name, value in position.items() if value is not None}

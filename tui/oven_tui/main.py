"""The monitor's process: `monitor [RUN_FOLDER] [--light]`; `up` gives the folder as OVEN_RUN_DIR."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from pathlib import Path
from typing import Annotated

import typer

from oven_controller.cancellation import call_at_end
from oven_controller.errors import ConfigError
from oven_controller.runs.folder import RunFolder

LOOK_S = 1.0
"""How often it looks whether the terminal is still there."""


def main(argv: list[str]) -> int:
    """Entry point of the monitor's process. Raises ConfigError without the extra `tui`, and without a terminal to draw
    on."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(show)
    app(argv, prog_name="monitor")
    return 0


def show(
    run_folder: Annotated[
        Path | None, typer.Argument(metavar="folder", envvar="OVEN_RUN_DIR", help="the run's folder")
    ] = None,
    light: Annotated[bool, typer.Option("--light", envvar="OVEN_LIGHT", help="a light theme")] = False,
    colour_blind: Annotated[
        bool, typer.Option("--colour-blind", envvar="OVEN_COLOUR_BLIND", help="colours for the colour-blind")
    ] = False,
    ascii_only: Annotated[
        bool | None, typer.Option("--ascii/--no-ascii", envvar="OVEN_ASCII", help="no signs beyond ASCII")
    ] = None,
) -> None:
    """The monitor of one run."""
    if run_folder is None:
        raise ConfigError(
            "which run? give its folder, or set OVEN_RUN_DIR; `oven-controller monitor RUN` finds it by name"
        )
    folder = RunFolder(run_folder)
    try:
        from oven_tui.app import MonitorApp
        from oven_tui.appearance import Appearance, needs_ascii
        from oven_tui.widgets.header import About
    except ImportError as error:
        raise ConfigError(
            f'the monitor needs its extra: `pip install "oven-controller[tui]"` ({error}); '
            f"without it, `oven-controller log {folder.run} --follow` prints the events"
        ) from error
    if not (sys.__stdin__ and sys.__stdin__.isatty() and sys.__stderr__ and sys.__stderr__.isatty()):
        raise ConfigError(
            "the monitor needs a terminal on stdin and stderr; without one use "
            f"`oven-controller log {folder.run} --follow`, or `oven-controller status {folder.run}`"
        )
    info = folder.info()
    appearance = Appearance(light, colour_blind, needs_ascii() if ascii_only is None else ascii_only)
    app = MonitorApp(About(folder.run, info.recipe, info.start, info.drill), folder, appearance=appearance)

    async def run() -> None:
        call_at_end(app.exit, signal.SIGHUP)  # Textual would leave the terminal as it is
        looking = asyncio.create_task(_end_when_hung_up())
        await app.run_async()
        looking.cancel()

    asyncio.run(run())
    goes_on = "continues" if folder.locked() else f"is {folder.status()}"
    again = f"`oven-controller monitor {folder.run}` shows it again"
    print(f"run {folder.run} {goes_on}; {app.view.run.seq} events were read; {again}")
    raise typer.Exit(app.return_code or 0)


async def _end_when_hung_up() -> None:
    """SIGHUP comes only to whom the terminal belongs, and Textual reads the end of one that is gone for ever. There is
    nothing to give back then, and nothing to save."""
    while True:
        try:
            termios.tcgetattr(0)
        except termios.error:
            os._exit(0)
        await asyncio.sleep(LOOK_S)

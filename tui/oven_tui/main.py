"""Entry point of the monitor's process: `monitor [RUN_FOLDER…] [--light]`. `up` passes the folder as OVEN_RUN_DIR.

`--nats` and `--creds`, or OVEN_URL and OVEN_CREDS, select a run on another machine. Several folders are shown as an
overlay.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oven_core.cancellation import on_termination
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import RunFolder

if TYPE_CHECKING:
    from oven_tui.model.monitor_view import MonitorView

PATH = click.Path(path_type=Path)
POLL_S = 1.0
"""Seconds between checks that the terminal still exists."""
WEB_DRIVER = "textual.drivers.web_driver:WebDriver"
"""Value of TEXTUAL_DRIVER for a monitor in a browser, which has no terminal."""


def main(argv: list[str]) -> int:
    """Run the monitor. Raises ConfigError if the extra `tui` or a terminal is missing."""
    show(argv, prog_name="monitor", obj=argv)
    return 0


@click.command()
@click.argument("run_folders", type=PATH, nargs=-1, envvar="OVEN_RUN_DIR", metavar="[FOLDER]...")
@click.option("--light", is_flag=True, envvar="OVEN_LIGHT", help="a light theme")
@click.option("--colour-blind", is_flag=True, envvar="OVEN_COLOUR_BLIND", help="colours for the colour-blind")
@click.option("--ascii/--no-ascii", "ascii_only", default=None, envvar="OVEN_ASCII", help="use only ASCII characters")
@click.option("--control", is_flag=True, help="enable commands that act on the run")
@click.option("--home", type=PATH, metavar="DIR", help="list the runs of this home")
@click.option("--play", is_flag=True, help="replay the run from its log")
@click.option("--speed", type=float, default=1.0, help="multiple of the run's original speed")
@click.option("--nats", default="", metavar="URL", help="URL of a run on another machine")
@click.option("--creds", type=PATH, metavar="FILE", help="your key for that run")
@click.option("--tls-ca", type=PATH, metavar="FILE", help="trusted authority, in PEM")
@click.option("--run", metavar="NAME", help="name of a run on another machine")
@click.option("--web", is_flag=True, help="show the monitor in a browser on this machine")
@click.option("--port", type=int, default=0, help="port for --web; 0 selects a free one")
@click.pass_context
def show(
    ctx: click.Context,
    run_folders: Sequence[Path],
    light: bool,
    colour_blind: bool,
    ascii_only: bool | None,
    control: bool,
    home: Path | None,
    play: bool,
    speed: float,
    nats: str,
    creds: Path | None,
    tls_ca: Path | None,
    run: str | None,
    web: bool,
    port: int,
) -> None:
    """Show one run, an overlay of several runs, or the list of runs."""
    accesses = _select_runs(run_folders, Endpoint(nats, creds, tls_ca), run, home)
    run_name = accesses[0].run if accesses else "RUN"
    try:
        from oven_tui.appearance import Appearance, needs_ascii
        from oven_tui.apps.windows import Windows
    except ImportError as error:
        raise ConfigError(
            f'the monitor needs an extra ({error}); run `pip install "oven-controller[tui]"`, '
            f"or use `oven-controller log {run_name} --follow` to print the events"
        ) from error
    if web:
        _serve(accesses, ctx.obj, port)
        return
    in_browser = os.environ.get("TEXTUAL_DRIVER") == WEB_DRIVER
    if not in_browser and not _has_terminal():
        alternative = "`oven-controller runs`"
        if accesses:
            alternative = f"`oven-controller log {run_name} --follow` or `oven-controller status {run_name}`"
        raise ConfigError(f"the monitor needs a terminal on stdin and stderr; without one, use {alternative}")
    appearance = Appearance(light, colour_blind, needs_ascii() if ascii_only is None else ascii_only)
    windows = Windows(accesses, home, appearance, speed, control=control, only_one=in_browser)

    async def run_windows() -> None:
        on_termination(windows.exit, signal.SIGHUP)  # Textual would not restore the terminal
        watch = asyncio.create_task(_exit_with_web_server() if in_browser else _exit_without_terminal())
        await windows.run(play=play)
        watch.cancel()

    asyncio.run(run_windows())
    view = windows.last_view
    if view is not None and len(accesses) == 1 and not in_browser:  # in a browser, stdout belongs to the web server
        print(_format_closing_line(accesses[0], view))
    ctx.exit(windows.return_code)


def _select_runs(
    run_folders: Sequence[Path], endpoint: Endpoint, run: str | None, home: Path | None
) -> list[RunAccess]:
    """Return the runs that the options name, or an empty list to show the list of runs. Raises ConfigError."""
    if endpoint.is_remote or (not run_folders and home is None):
        endpoint = endpoint.with_environment()
        if endpoint.is_remote:
            return [RemoteRun.from_endpoint(endpoint, run)]
        raise ConfigError("no run was given; pass its folder, set OVEN_RUN_DIR, or use `oven-controller monitor RUN`")
    return [LocalRun(RunFolder(folder)) for folder in run_folders]


def _format_closing_line(access: RunAccess, view: MonitorView) -> str:
    """Return the line that the terminal shows after the monitor is closed."""
    if isinstance(access, LocalRun):
        state = "continues" if access.is_up() else f"is {access.folder.status()}"
        command = f"`oven-controller monitor {access.run}`"
    else:
        state = f"is {view.run.ended.reason}" if view.run.ended else "continues"
        command = "the same command"
    return f"run {access.run} {state}; {view.run.seq} events read; {command} opens the monitor again"


def _has_terminal() -> bool:
    return all(stream and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__))


def _serve(accesses: Sequence[RunAccess], argv: Sequence[str], port: int) -> None:
    """Serve the monitor to a browser. Raises ConfigError if the extra `web` is missing or no run is named."""
    if not accesses:
        raise ConfigError("--web needs the name of a run, or of two to four runs for an overlay")
    try:
        from oven_tui.web_server import serve
    except ImportError as error:
        raise ConfigError(
            f'--web needs an extra ({error}); run `pip install "oven-controller[web]"`, or omit --web'
        ) from error
    arguments = [argument for argument in argv if argument != "--web"]
    if "--port" in arguments:
        port_index = arguments.index("--port")
        del arguments[port_index : port_index + 2]
    serve(arguments, ", ".join(access.run for access in accesses), port)


async def _exit_with_web_server() -> None:
    """Exit when the web server is gone. A killed server cannot stop its monitors, and Textual would wait forever."""
    stdin = select.poll()
    stdin.register(0, 0)  # poll always reports a pipe without a writer
    while not stdin.poll(0):
        await asyncio.sleep(POLL_S)
    os._exit(0)


async def _exit_without_terminal() -> None:
    """Exit when the terminal is gone. Not every process of a terminal receives SIGHUP, and Textual keeps reading from a
    closed terminal. There is nothing to restore or to save."""
    while True:
        try:
            termios.tcgetattr(0)
        except termios.error:
            os._exit(0)
        await asyncio.sleep(POLL_S)

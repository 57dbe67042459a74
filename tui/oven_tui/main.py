"""The monitor's process: `monitor [RUN_FOLDER…] [--light]`. `up` passes the folder as OVEN_RUN_DIR.

`--nats` and `--creds`, or OVEN_URL and OVEN_CREDS, name a run on another machine. Several folders are shown as an
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
from typing import TYPE_CHECKING, Annotated

import typer

from oven_core.cancellation import on_termination
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import RunFolder

if TYPE_CHECKING:
    from oven_tui.model.monitor_view import MonitorView

LOOK_S = 1.0
"""Seconds between two checks that the terminal still exists."""
WEB_DRIVER = "textual.drivers.web_driver:WebDriver"
"""TEXTUAL_DRIVER of a monitor that draws for a browser and has no terminal."""


def main(argv: list[str]) -> int:
    """Run the monitor's process. Raises ConfigError without the extra `tui`, and without a terminal."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(show)
    app(argv, prog_name="monitor", obj=argv)
    return 0


def show(
    context: typer.Context,
    run_folders: Annotated[
        list[Path] | None, typer.Argument(metavar="folder", envvar="OVEN_RUN_DIR", help="the runs' folders")
    ] = None,
    light: Annotated[bool, typer.Option("--light", envvar="OVEN_LIGHT", help="a light theme")] = False,
    colour_blind: Annotated[
        bool, typer.Option("--colour-blind", envvar="OVEN_COLOUR_BLIND", help="colours for the colour-blind")
    ] = False,
    ascii_only: Annotated[
        bool | None, typer.Option("--ascii/--no-ascii", envvar="OVEN_ASCII", help="no signs beyond ASCII")
    ] = None,
    control: Annotated[bool, typer.Option("--control", help="act on the run, with the operator's key")] = False,
    home: Annotated[Path | None, typer.Option(metavar="dir", help="list the runs of this home")] = None,
    play: Annotated[bool, typer.Option("--play", help="play the run from its log")] = False,
    speed: Annotated[float, typer.Option(help="times the run's own pace")] = 1.0,
    nats: Annotated[str, typer.Option(metavar="url", help="where a run elsewhere is reached")] = "",
    creds: Annotated[Path | None, typer.Option(metavar="file", help="your key for it")] = None,
    tls_ca: Annotated[Path | None, typer.Option("--tls-ca", metavar="file", help="authority to trust, PEM")] = None,
    run: Annotated[str | None, typer.Option(metavar="name", help="the name of a run elsewhere")] = None,
    web: Annotated[bool, typer.Option("--web", help="in a browser of this machine")] = False,
    port: Annotated[int, typer.Option(help="with --web; 0: a free one")] = 0,
) -> None:
    """Show one run, an overlay of several, or the list of all."""
    accesses = _accesses(run_folders or [], Endpoint(nats, creds, tls_ca), run, home)
    named = accesses[0].run if accesses else "RUN"
    try:
        from oven_tui.appearance import Appearance, needs_ascii
        from oven_tui.apps.windows import Windows
    except ImportError as error:
        raise ConfigError(
            f'the monitor needs its extra: `pip install "oven-controller[tui]"` ({error}); '
            f"without it, `oven-controller log {named} --follow` prints the events"
        ) from error
    if web:
        _serve(accesses, context.obj, port)
        return
    in_browser = os.environ.get("TEXTUAL_DRIVER") == WEB_DRIVER
    if not in_browser and not _has_terminal():
        instead = f"`oven-controller log {named} --follow`, or `oven-controller status {named}`"
        raise ConfigError(
            "the monitor needs a terminal on stdin and stderr; without one use "
            + (instead if accesses else "`oven-controller runs`")
        )
    appearance = Appearance(light, colour_blind, needs_ascii() if ascii_only is None else ascii_only)
    windows = Windows(accesses, home, appearance, speed, control=control, only_one=in_browser)

    async def shown() -> None:
        on_termination(windows.exit, signal.SIGHUP)  # Textual would leave the terminal as it is
        looking = asyncio.create_task(_end_with_the_server() if in_browser else _end_when_hung_up())
        await windows.run(play=play)
        looking.cancel()

    asyncio.run(shown())
    if (view := windows.last_view) is not None and len(accesses) == 1 and not in_browser:  # whose is its stdout
        print(_closing(accesses[0], view))
    raise typer.Exit(windows.return_code)


def _accesses(run_folders: list[Path], endpoint: Endpoint, run: str | None, home: Path | None) -> list[RunAccess]:
    """Return the named runs; none if the list is wanted. Raises ConfigError."""
    if endpoint.is_remote or (not run_folders and home is None):
        endpoint = endpoint.with_environment()
        if endpoint.is_remote:
            return [RemoteRun.from_endpoint(endpoint, run)]
        raise ConfigError(
            "which run? give its folder, or set OVEN_RUN_DIR; `oven-controller monitor RUN` finds it by name"
        )
    return [LocalRun(RunFolder(folder)) for folder in run_folders]


def _closing(access: RunAccess, view: MonitorView) -> str:
    """Return what the monitor's terminal shows after it is closed."""
    if isinstance(access, LocalRun):
        state = "continues" if access.is_up() else f"is {access.folder.status()}"
        command = f"`oven-controller monitor {access.run}`"
    else:
        state = f"is {view.run.ended.reason}" if view.run.ended else "continues"
        command = "the same command"
    return f"run {access.run} {state}; {view.run.seq} events were read; {command} shows it again"


def _has_terminal() -> bool:
    return all(stream and stream.isatty() for stream in (sys.__stdin__, sys.__stderr__))


def _serve(accesses: Sequence[RunAccess], argv: Sequence[str], port: int) -> None:
    """Serve the monitor to a browser. Raises ConfigError without the extra `web`, and if no run is named."""
    if not accesses:
        raise ConfigError("--web shows what is named, and there are several runs: name one, or two to four")
    try:
        from oven_tui.web_server import serve
    except ImportError as error:
        raise ConfigError(
            f'--web needs its extra: `pip install "oven-controller[web]"` ({error}); in a terminal the monitor needs '
            "none"
        ) from error
    rest = [part for part in argv if part != "--web"]
    if "--port" in rest:
        port_index = rest.index("--port")
        del rest[port_index : port_index + 2]
    serve(rest, ", ".join(access.run for access in accesses), port)


async def _end_with_the_server() -> None:
    """End when the web server is gone: a killed server cannot end its monitors, and Textual would wait."""
    stdin = select.poll()
    stdin.register(0, 0)  # a pipe without a writer is told of all the same
    while not stdin.poll(0):
        await asyncio.sleep(LOOK_S)
    os._exit(0)


async def _end_when_hung_up() -> None:
    """End when the terminal is gone. Only its owner gets SIGHUP, and Textual reads the end of a closed terminal
    forever. There is nothing to restore and nothing to save."""
    while True:
        try:
            termios.tcgetattr(0)
        except termios.error:
            os._exit(0)
        await asyncio.sleep(LOOK_S)

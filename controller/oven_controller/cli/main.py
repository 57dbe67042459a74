"""`oven-controller`: the console script, and the order and panels in which its help shows the commands."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup
from typer.models import CommandInfo

from oven_controller.cli import (
    agent,
    backtest,
    bench,
    calibration,
    config,
    creds,
    decisions,
    doctor,
    explain,
    gym,
    importing,
    judge,
    log,
    mcp,
    monitor,
    notify,
    operator,
    oracle,
    plugged_groups,
    replay,
    review,
    runs,
    schema,
    up,
)
from oven_core.errors import NO_ROOM, OvenError
from oven_core.terminal_text import clean

PANELS = {
    "Start and end": ("up", "run", "down"),
    "Watch": ("runs", "status", "monitor", "log", "notify", "mcp"),
    "Overrule": (
        "hold",
        "resume",
        "stop",
        "set",
        "approve",
        "veto",
        "autonomy",
        "mute",
        "unmute",
        "trust",
        "distrust",
        "judge",
    ),
    "Ask": ("decisions", "explain", "review", "replay", "backtest", "import", "kg", "oracle", "supervise", "traces"),
    "Measure": ("gym", "bench", "calibration"),
    "Set up": ("doctor", "config", "agent", "creds", "schema"),
}
_PLACES = {name: (at, panel) for at, (name, panel) in enumerate((n, p) for p, names in PANELS.items() for n in names)}


class Panels(TyperGroup):
    """A group whose commands are listed as `PANELS` has them; one that is in no panel comes last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: _PLACES.get(name, (len(_PLACES), ""))[0])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None and cmd_name in _PLACES:
            command.rich_help_panel = _PLACES[cmd_name][1]
        return command


app = typer.Typer(
    name="oven-controller",
    help="An autopilot for model training that you can watch, question and overrule.",
    cls=Panels,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reading = (log, mcp, decisions, explain, replay, review, backtest, calibration, importing)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("oven-controller"))
        raise typer.Exit


@app.callback()
def main(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


for group in (up, runs, monitor, *reading, operator, creds, schema, bench, gym, doctor, config, plugged_groups):
    group.register(app)
app.add_typer(agent.app, name="agent")
app.add_typer(judge.app, name="judge")
app.add_typer(oracle.app, name="oracle")
app.add_typer(notify.app, name="notify")


@functools.cache
def command(name: str = "") -> Any:
    """`app` as Click has it; with the name of a command or a group, with that one alone: all of them take longer to
    make than most take to run."""
    only = copy.copy(app)
    if name:
        only.registered_commands = [one for one in app.registered_commands if _called(one) == name]
        only.registered_groups = [one for one in app.registered_groups if one.name == name]
    if not only.registered_commands and not only.registered_groups:
        only = app  # whose error names what is near
    return typer.main.get_command(only)


def _called(info: CommandInfo) -> str:
    return info.name or typer.main.get_command_name(info.callback.__name__ if info.callback else "")


def run(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 the answer is no, 2 the request is wrong, 3 something outside failed, 130 Ctrl-C."""
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        command(words[0] if words else "")(args=words, prog_name="oven-controller")
    except OvenError as error:
        print("error: " + "\n".join(map(clean, str(error).splitlines())), file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = f" at {error.filename}" if error.filename else ""
        print(f"error: nothing more can be written{where} ({error.strerror}): make room there", file=sys.stderr)
        sys.exit(OvenError.exit_code)


if __name__ == "__main__":
    run()

"""`oven-controller`: the console script."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from oven_controller.cli import (
    agent,
    backtest,
    bench,
    calibration,
    config,
    creds,
    doctor,
    explain,
    gym,
    importing,
    kg,
    log,
    monitor,
    operator,
    replay,
    review,
    runs,
    schema,
    up,
)
from oven_controller.cli.help_panels import Panels
from oven_controller.errors import OvenError
from oven_controller.text.sanitization import clean

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""A full disk, a quota, a limit on a file's size, a disk that takes nothing."""

app = typer.Typer(
    name="oven-controller",
    help="An autopilot for model training that you can watch, question and overrule.",
    cls=Panels,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reading = (log, explain, replay, review, backtest, calibration, importing)


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


for group in (up, runs, monitor, *reading, operator, creds, schema, bench, gym, doctor, config, kg):
    group.register(app)
app.add_typer(agent.app, name="agent")


def run(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 the answer is no, 2 the request is wrong, 3 something outside failed, 130 Ctrl-C."""
    try:
        app(args=list(argv) if argv is not None else None, prog_name="oven-controller")
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

"""`oven-controller`: the console script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from oven_controller.cli import (
    agent,
    backtest,
    bench,
    calibration,
    creds,
    doctor,
    gym,
    importing,
    kg,
    log,
    monitor,
    operator,
    replay,
    runs,
    schema,
    up,
)
from oven_controller.errors import OvenError

app = typer.Typer(
    name="oven-controller",
    help="An autopilot for model training that you can watch, question and overrule.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
reading = (log, replay, backtest, calibration, importing)
for group in (up, runs, monitor, *reading, operator, creds, schema, bench, gym, doctor, kg):
    group.register(app)
app.add_typer(agent.app, name="agent")


def run(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 the answer is no, 2 the request is wrong, 3 something outside failed, 130 Ctrl-C."""
    try:
        app(args=list(argv) if argv is not None else None, prog_name="oven-controller")
    except OvenError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    run()

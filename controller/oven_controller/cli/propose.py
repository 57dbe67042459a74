"""The command `propose`, which casts one proposal of low trust and prints the mesh's answer."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from oven_controller.cli import completion
from oven_controller.cli.lazy_group import single_command
from oven_controller.cli.operator import parse_value
from oven_controller.cli.options import Json, LiveRunOption, print_result
from oven_controller.stack import proposals
from oven_runs.home.run_folder import Home

AGENT: Final = "cli-proposals"
"""The agent's name in the log, for all proposals from the command line."""


def propose(
    *,
    actuator: Annotated[
        str, typer.Argument(metavar="KNOB", help="The knob, as in `status`.", autocompletion=completion.knobs)
    ],
    value: Annotated[
        str | None, typer.Argument(help="A number, a choice, or JSON shares; nothing for some actions.")
    ] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, with figures; logged.")],
    run: LiveRunOption = None,
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that the change beats doing nothing.")
    ] = proposals.DEFAULT_CONFIDENCE,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Maximum wait for the answer.")
    ] = proposals.DEFAULT_WAIT_S,
    as_json: Json = False,
) -> None:
    """Propose a value for a knob to the mesh, as an agent without trust, and print the answer.

    Unlike with `set`, agents may vote against the change, the guardrails bound it, and a person approves it.

    Exit code 0 if it was adopted or became advice, 1 if it was rejected or refused, 3 if there is no answer in time.

    Example: oven-controller propose optimizer.lr_scale 0.5 --why "the loss rose from 1.9 to 2.6 in 40 steps"
    """
    folder = Home().find(run, running=True)
    report = proposals.cast_proposal(
        folder, AGENT, actuator, parse_value(value), why, confidence=confidence, wait_s=wait
    )
    print_result(as_json, report, report.lines())
    raise typer.Exit(report.code)


# Without this, a negative value would be parsed as an option.
propose_command = single_command(propose, ignore_unknown_options=True)

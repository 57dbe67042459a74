"""The command `propose`, which casts one proposal of low trust and prints the mesh's answer."""

from __future__ import annotations

from typing import Final

import click

from oven_controller.cli import completion
from oven_controller.cli.operator import NEGATIVE_VALUES, parse_value
from oven_controller.cli.options import DEFAULT_LIVE_RUN, argument, json_option, print_result, run_option
from oven_controller.stack import proposals
from oven_runs.home.run_folder import Home

AGENT: Final = "cli-proposals"
"""The agent's name in the log, for all proposals from the command line."""


@click.command(context_settings=NEGATIVE_VALUES)
@argument("actuator", metavar="KNOB", shell_complete=completion.knobs, help="The knob, as in `status`.")
@argument("value", required=False, help="A number, a choice, or JSON shares; nothing for some actions.")
@click.option("--why", required=True, metavar="TEXT", help="The reason, with figures; logged.")
@run_option("Run name.", show_default=DEFAULT_LIVE_RUN)
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1),
    default=proposals.DEFAULT_CONFIDENCE,
    help="Probability that the change beats doing nothing.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0.1),
    default=proposals.DEFAULT_WAIT_S,
    metavar="SECONDS",
    help="Maximum wait for the answer.",
)
@json_option
def propose(
    actuator: str, value: str | None, why: str, run: str | None, confidence: float, wait: float, as_json: bool
) -> int:
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
    return report.code

"""The `decisions` command: list a run's decisions, one per row."""

from __future__ import annotations

import asyncio
from typing import get_args

import click

from oven_controller.cli import completion
from oven_controller.cli.options import DEFAULT_RUN, json_option, remote_options, run_argument
from oven_core.terminal_text import say
from oven_runs.access.decision_explanations import read_explanations
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import find_run
from oven_runs.log.decision_row import HEADER, DecisionFilter, decision_row, format_row
from oven_runs.log.explanation import Explanations
from oven_runs.log.run_summary import Verdict
from oven_runs.log.since_option import ACCEPTED_FORMS, Since


@click.command()
@run_argument(DEFAULT_RUN)
@click.option(
    "--since",
    metavar="STEP|TIME",
    help=f"Only decisions after this point: {ACCEPTED_FORMS} before the log's newest event.",
)
@click.option(
    "--actuator",
    default="",
    show_default=False,
    metavar="NAME",
    shell_complete=completion.knobs,
    help="Only decisions on this actuator.",
)
@click.option(
    "--agent",
    default="",
    show_default=False,
    metavar="NAME",
    shell_complete=completion.agents,
    help="Only decisions that this agent voted on, or that this person made.",
)
@click.option("--verdict", type=click.Choice(get_args(Verdict)), help="Only decisions with this verdict.")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Continue until the stack is down. A row is printed again when its receipt or outcome arrives.",
)
@json_option
@remote_options
def decisions(
    run: str | None,
    since: str | None,
    actuator: str,
    agent: str,
    verdict: Verdict | None,
    follow: bool,
    as_json: bool,
    endpoint: Endpoint,
) -> None:
    """List a run's decisions: step, author, change, verdict, the value read back, and the effect. With --json, one
    object per line.

    Example: oven-controller decisions --since 30m --verdict adopted
    """
    criteria = DecisionFilter(Since.parse(since), actuator, agent, verdict or "")
    asyncio.run(_print_decisions(find_run(run, endpoint), criteria, follow, as_json))


async def _print_decisions(access: RunAccess, criteria: DecisionFilter, follow: bool, as_json: bool) -> None:
    explanations = await read_explanations(access)
    last_seq = explanations.seq
    if not follow:  # with --follow, an unknown name may still appear
        criteria.check_names(explanations.by_id.values())
    decisions, newest_time = explanations.by_id, explanations.newest_time
    ids = [id_ for id_, decision in decisions.items() if criteria.matches(decision, newest_time)]
    if not as_json:
        empty = f"none of the {len(decisions)} decisions match" if decisions else "no decisions yet"
        print(HEADER if ids or follow else empty)
    for id_ in ids:
        _print_row(explanations, id_, criteria, as_json)
    if not follow:
        return
    async for event in access.follow():
        if event.seq > last_seq:
            explanations.feed(event)
            if explanations.changed_id:
                _print_row(explanations, explanations.changed_id, criteria, as_json)


def _print_row(explanations: Explanations, id_: str, criteria: DecisionFilter, as_json: bool) -> None:
    if criteria.matches(explanations.by_id[id_], explanations.newest_time):
        decision = decision_row(explanations.get(id_))
        if as_json:
            print(decision.model_dump_json(ensure_ascii=True), flush=True)
        else:
            say(format_row(decision), flush=True)

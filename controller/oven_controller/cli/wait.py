"""The command `wait`, which sleeps until something happens in a run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from oven_controller.cli.log import format_event
from oven_controller.cli.options import DEFAULT_LIVE_RUN, json_option, print_result, remote_options, run_argument
from oven_core.protocol.alerts import Alert
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.event_wait import Condition, wait_for
from oven_runs.access.run_finder import find_run


@click.command()
@click.option("--for", "for_", required=True, metavar="EVENT", help="finding, decision, end, or step:N.")
@run_argument(DEFAULT_LIVE_RUN)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Give up after this time.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Also accept an event that is in the log already, after this sequence number.",
)
@json_option
@remote_options
def wait(
    for_: str, run: str | None, timeout: float | None, after: int | None, as_json: bool, endpoint: Endpoint
) -> int:
    """Sleep until a finding is raised, a decision is made, a step is reached, or the training ends, and print it.

    Exit code 0 if it happened, 1 if the training ended without it, 3 on timeout.

    Example: oven-controller wait grpo-1121-0231 --for finding --timeout 3600 --json
    """
    condition = Condition.parse(for_)
    access = find_run(run, endpoint)
    try:
        event = asyncio.run(_wait(wait_for(access, condition, after), timeout))
        code, outcome = (1, "ended") if event is None else (0, "happened")
    except TimeoutError:
        event, code, outcome = None, 3, "timeout"
    if event is None and outcome == "ended" and condition.kind == "end":  # killed, so the log has no end
        code, outcome = 0, "happened"
    texts = {
        "happened": "the stack is down",
        "ended": f"the training ended without {for_}",
        "timeout": f"no {for_} within {timeout or 0:g} s",
    }
    lines = [format_event(event) if event is not None else f"run {access.run}: {texts[outcome]}"]
    print_result(as_json, {"run": access.run, "for": for_, "outcome": outcome, **_fields(event)}, lines)
    return code


async def _wait(waiting: Any, timeout_s: float | None) -> Event | None:
    async with asyncio.timeout(timeout_s):
        event: Event | None = await waiting
        return event


def _fields(event: Event | None) -> dict[str, Any]:
    if event is None or isinstance(event.body, Malformed):
        return {}
    agent = {"agent": event.author} if isinstance(event.body, Alert) else {}
    return {"seq": event.seq, "time": event.time.isoformat(), **agent, "event": json.loads(event.data)}
